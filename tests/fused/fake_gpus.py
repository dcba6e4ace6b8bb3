"""GPUs that execute the plans of a fused attention in numpy: what the kernels of cuda/ would read, write and wait for, without their speed.

An address is a GPU's number in its upper half and a byte of that GPU's memory in its lower. A result is a pattern that names its rank's
inputs, row, head and column, so a row in a wrong place is seen; what the kernel computes is the business of the tests on real GPUs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from xstage_bench.kernels.attention.attention import REPORT, STAMP, WAIT, AttentionBuild
from xstage_bench.kernels.attention.check import Verdict
from xstage_bench.kernels.attention.problem import Problem
from xstage_bench.kernels.attention.tile_order import blocks_of

SPACE = 40  # bits of an address within a GPU
MEMORY_BYTES = 48 << 20
POISON = 0xFFFF


def encode(address: int, head_dim: int, rows: int, heads: int, box_rows: int) -> np.ndarray:
    """In place of `tensor_map.rows_of_heads`: the arguments themselves."""
    return np.array([address, head_dim, rows, heads, box_rows, *[0] * 11], dtype=np.uint64)


def pattern(inputs: int, row: np.ndarray, head: int, columns: int) -> np.ndarray:
    """What the fake kernel computes: 16-bit words, never poison."""
    words = inputs * 7919 + row[:, None] * 131 + head * 17 + np.arange(columns)
    return (words % POISON).astype(np.uint16)


class Machine:
    """GPUs that address each other's memory."""

    def __init__(self, count: int, sms: int = 132) -> None:
        self.gpus = {device: FakeGpu(self, device, sms) for device in range(count)}

    def words(self, address: int, count: int, dtype: Any = np.uint16) -> np.ndarray:
        """View memory, wherever it is."""
        gpu = self.gpus[int(address) >> SPACE]
        at = int(address) & ((1 << SPACE) - 1)
        assert gpu.start <= at <= at + count * np.dtype(dtype).itemsize <= gpu.end, "inside of what was taken"
        return gpu.memory[at : at + count * np.dtype(dtype).itemsize].view(dtype)

    def settle(self) -> None:
        """Everything queued has been queued: copies whose flags never came, and waits that never end, are errors."""
        for gpu in self.gpus.values():
            gpu.settle()


class FakeGpu:
    """As much of `gpu.AttentionGpu` as a rig and its variants use."""

    def __init__(self, machine: Machine, device: int, sms: int) -> None:
        self.machine, self.index, self.sms = machine, device, sms
        self.memory = np.zeros(MEMORY_BYTES, dtype=np.uint8)
        self.start = self.end = 256
        self.stream, self.side_stream = (SimpleNamespace(ptr=device, wait_event=lambda event: None) for _ in range(2))
        self.waiting: list[tuple[np.ndarray, int]] = []
        self.awaited: list[np.ndarray] = []

    def room(self, size: int) -> int:
        at = self.end
        self.end += -(-max(size, 16) // 256) * 256
        assert self.end <= MEMORY_BYTES
        return self.index << SPACE | at

    def zeroed(self, size: int) -> int:
        address = self.room(size)
        self.machine.words(address, size, np.uint8)[:] = 0
        return address

    def uploaded(self, array: np.ndarray) -> int:
        address = self.room(array.nbytes)
        self.machine.words(address, array.nbytes, np.uint8)[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        return address

    def downloaded(self, address: int, dtype: np.dtype[Any], count: int = 1) -> np.ndarray:
        return self.machine.words(address, count, dtype).copy()

    def normal(self, elements: int, seed: int) -> int:
        address = self.room(2 * elements)
        self.machine.words(address, 1)[:] = seed % 1000
        return address

    def free(self, address: int) -> None:
        assert address >> SPACE == self.index

    def poison(self, address: int, size: int) -> None:
        self.machine.words(address, size, np.uint8)[:] = 0xFF

    def unwritten(self, address: int, elements: int) -> int:
        return int((self.machine.words(address, elements) == POISON).sum())

    def check(self, p: Problem, rank: int, inputs: dict[str, int], out: dict[int, int]) -> Verdict:
        wrong = unwritten = 0
        for owner, address in out.items():
            rows = np.arange(p.rows_of(owner))
            found = self.machine.words(address, rows.size * p.heads * p.head_dim).reshape(rows.size, p.heads, p.head_dim)
            for head in range(p.local_heads):
                mine = found[:, rank * p.local_heads + head]
                expected = pattern(self._identity(inputs["q"]), rows + owner * p.rows_per_owner, head, p.head_dim)
                unwritten += int((mine == POISON).sum())
                wrong += int((mine != expected).sum())
        return Verdict(float(wrong > 0), float(wrong), unwritten, p.seq, p.seq)

    def _identity(self, q: int) -> int:
        return int(self.machine.words(q, 1)[0])

    def kernel(self, build: AttentionBuild) -> FakeKernel:
        return FakeKernel(self, build)

    def copy_pieces(self, pieces: tuple[int, int], stream: Any, *, blocks: int | None = None, epoch: int = 0) -> None:
        from xstage_bench.kernels.attention.transfer import PIECE

        for piece in self.downloaded(pieces[0], PIECE, pieces[1]) if pieces[1] else ():
            if piece["flag"]:
                self.waiting.append((piece, epoch))
            else:
                self._copy(piece)

    def _copy(self, piece: np.ndarray) -> None:
        for row in range(int(piece["rows"])):
            n = int(piece["row_bytes"])
            source = self.machine.words(int(piece["from"]) + row * int(piece["from_pitch"]), n, np.uint8)
            self.machine.words(int(piece["to"]) + row * int(piece["to_pitch"]), n, np.uint8)[:] = source

    def copy_what_is_ready(self) -> None:
        """Copy pieces whose flags are set, as copying SMs do: what is not there yet by then is missing in the end."""
        ready = [p for p, epoch in self.waiting if self.machine.words(int(p["flag"]), 1, np.uint32)[0] == epoch]
        self.waiting = [(p, epoch) for p, epoch in self.waiting if self.machine.words(int(p["flag"]), 1, np.uint32)[0] != epoch]
        for piece in ready:
            self._copy(piece)

    def settle(self) -> None:
        assert not self.waiting, "a piece whose flag never comes"
        for plan in self.awaited:
            epoch = int(plan["epoch"][0])
            for wait in self.downloaded(int(plan["waits"][0]), WAIT, int(plan["wait_count"][0])) if plan["wait_count"][0] else ():
                found = self.machine.words(int(wait["words"]), int(wait["count"]), np.uint32)
                assert (found == int(wait["per_launch"]) * epoch).all(), "a flag that is awaited and not set, or set too often"
        self.awaited = []

    def synchronize(self) -> None: ...

    def use(self) -> None: ...

    def event(self, stream: Any = None) -> None: ...

    def was_late(self) -> bool:
        return False


class FakeKernel:
    """One build of the attention: executes a plan tile by tile."""

    def __init__(self, gpu: FakeGpu, build: AttentionBuild) -> None:
        self.gpu, self.build = gpu, build

    def launch(self, plan: np.ndarray, stream: int, ctas: int) -> None:
        p, build, machine = plan[0], self.build, self.gpu.machine
        q, seq, head_dim = p["q"], int(p["seq"]), build.head_dim
        assert [int(x) for x in q[1:5]] == [head_dim, seq, int(q[3]), build.tile_rows]
        assert int(p["k"][4]) == int(p["v"][4]) == build.keys
        inputs = self.gpu._identity(int(q[0]))
        order = self.gpu.downloaded(int(p["order"]), np.dtype("<u4"), int(p["tiles"]))
        per_owner, heads_total, first_head = int(p["rows_per_owner"]), int(p["heads_total"]), int(p["head_first"])
        for i, word in enumerate(order.tolist()):
            head, block = word >> 16, word & 0xFFFF
            assert head < int(q[3])
            rows = np.arange(block * build.tile_rows, min((block + 1) * build.tile_rows, seq))
            owners = [int(owner) for owner in np.unique(rows // per_owner)]
            for owner in owners:
                mine = rows[rows // per_owner == owner]
                address = int(p["out"][owner])
                tensor = p["out_map"][owner]
                assert [int(tensor[0]), int(tensor[3])] == [address, heads_total], "both ways to store aim at the same place"
                last = int(mine[-1]) - owner * per_owner
                assert last < int(tensor[2]), "a row beyond the owner's tensor would be dropped by a bulk store"
                target = machine.words(address, (last + 1) * heads_total * head_dim).reshape(last + 1, heads_total, head_dim)
                target[mine - owner * per_owner, first_head + head] = pattern(inputs, mine, head, head_dim)
            for owner in owners:
                self._flag(p, owner, first_head + head, block, seq)
            self.gpu.copy_what_is_ready()
            if build.stamps:
                stamps = machine.words(int(p["stamps"]) + i * build.consumers * STAMP.itemsize, build.consumers, STAMP)
                stamps["begin_ns"], stamps["computed_ns"], stamps["stored_ns"] = 1000 * i, 1000 * i + 900, 1000 * i + 950
                stamps["smid"], stamps["tile"] = i % self.gpu.sms, i
        if build.flags == "end":
            assert ctas <= order.size
            for owner in range(int(p["owners"])):
                if p["flags"][owner]:
                    machine.words(int(p["flags"][owner]), 1, np.uint32)[0] += ctas
        if build.flags != "none":
            machine.words(int(p["report"]), 1, REPORT)["timed_out"] = 0
            self.gpu.awaited.append(plan.copy())

    def _flag(self, p: Any, owner: int, head: int, block: int, seq: int) -> None:
        if self.build.flags == "shard":
            self.gpu.machine.words(int(p["flags"][owner]), 1, np.uint32)[0] += 1
        elif self.build.flags == "tile":
            word = head * blocks_of(seq, self.build.tile_rows) + block
            self.gpu.machine.words(int(p["flags"][owner]) + 4 * word, 1, np.uint32)[0] = int(p["epoch"])


class FakeNccl:
    """Messages arrive at once."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def exchange(self, messages: Any, streams: Any) -> None:
        for sender, receiver, source, destination, size in messages:
            assert sender != receiver
            self.machine.words(destination, size, np.uint8)[:] = self.machine.words(source, size, np.uint8)
