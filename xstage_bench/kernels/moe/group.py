"""The computing ranks together: launch a layer on all GPUs, read its times, and say whether every result row is right.

Ranks of a real group have a GPU each. In an emulated group two GPUs are the first two ranks, and every other rank's tokens and result slots
lie on the peer: what a sender does is what it would do among `ep` GPUs, what a receiver gets is not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DeviceLostError, UsageError, XStageError
from xstage_bench.kernels.moe.build import REPORT, STAMP, Build
from xstage_bench.kernels.moe.forecast import remote_tile_bytes
from xstage_bench.kernels.moe.layer import PADDING, Layer, Rows, Slots, rows_of
from xstage_bench.kernels.moe.numbers import decode_rows, expected_rows, tolerance
from xstage_bench.kernels.moe.order import Order, TaskLists, check_lists, task_lists
from xstage_bench.kernels.moe.rank import Kernel, Rank, Stock
from xstage_bench.workloads.shapes import TILE

if TYPE_CHECKING:
    from xstage_bench.model.stage import Stage

HOST_TIMEOUT_S = 20.0
LONGEST_STAGGER_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Times:
    """One execution of a layer on one GPU, ns after the common start.

    Parameters
    ----------
    stored_ns : float
        The last CTA has issued its last store: what the sender sees.
    arrived_ns : float
        Every rank has stored everything and it is visible here.
    end_ns : float
        The tokens' rows are summed.
    sm_clock_mhz : float
        Of the SMs, from the start until `arrived_ns`, in the mean: under power limits it falls.
    """

    stored_ns: float
    arrived_ns: float
    end_ns: float
    sm_clock_mhz: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """One order on all ranks, its lists checked and uploaded. `local`: every row stays on its sender's GPU."""

    order: Order
    build: Build
    local: bool
    lists: tuple[TaskLists, ...]
    uploaded: tuple[dict[str, Any], ...]
    stagger_ns: int = 0
    slots: Slots = "expert"


class Gpus:
    """Streams, kernels and stock of the GPUs of a group; layers come and go."""

    def __init__(self, devices: tuple[int, ...]) -> None:
        import cupy
        from cupy.cuda import runtime

        cupy.cuda.set_allocator(None)  # plain cudaMalloc: what comes from a pool is not visible to peers
        self.devices, self._cupy = devices, cupy
        for device in devices:
            runtime.setDevice(device)
            for peer in set(devices) - {device}:
                if not runtime.deviceCanAccessPeer(device, peer):
                    raise XStageError(f"GPU {device} cannot address the memory of GPU {peer}", "see 'xstage topo' for the pairs that can")
                try:
                    runtime.deviceEnablePeerAccess(peer)
                except runtime.CUDARuntimeError as error:
                    if "lreadyEnabled" not in str(error):
                        raise
        self.stocks = [Stock(device) for device in devices]
        self.streams = []
        for device in devices:
            self.use(device)
            self.streams.append(cupy.cuda.Stream(non_blocking=True))
        self.sms = min(int(runtime.getDeviceProperties(d)["multiProcessorCount"]) for d in devices)
        self._kernels: dict[tuple[int, Build], Kernel] = {}

    def use(self, device: int) -> None:
        """Make a GPU the current one of CuPy and of the runtime."""
        self._cupy.cuda.Device(device).use()

    def kernel(self, device: int, build: Build) -> Kernel:
        """Return the kernel of a build, loaded on first use; never while another kernel runs."""
        if (device, build) not in self._kernels:
            self._kernels[device, build] = Kernel(device, build)
        return self._kernels[device, build]


class Group:
    """A layer on its GPUs.

    Parameters
    ----------
    layer : Layer
    gpus : Gpus
        As many as ranks, or two for an emulated group.
    rows : sequence of Rows, optional
        Of each computing rank, where they have been made already.
    """

    def __init__(self, layer: Layer, gpus: Gpus, rows: Sequence[Rows] | None = None) -> None:
        import cupy

        n = len(gpus.devices)
        if n != layer.ep and (n != 2 or layer.ep < 2):
            raise UsageError(f"{layer.ep} ranks on {n} GPUs", "as many GPUs as ranks, or two for an emulated group")
        self.layer, self.gpus, self._cupy = layer, gpus, cupy
        rows = [rows_of(layer, r) for r in range(n)] if rows is None else rows
        self.ranks = [Rank(layer, r, one, stock) for r, (one, stock) in enumerate(zip(rows, gpus.stocks, strict=True))]

    @property
    def emulated(self) -> bool:
        """Whether some of the ranks do not exist."""
        return len(self.ranks) != self.layer.ep

    def places(self, rank: int, *, local: bool = False) -> dict[int, Rank]:
        """Return on whose GPU each owner's slots and tokens lie, for one sender."""
        if local:
            return dict.fromkeys(range(self.layer.ep), self.ranks[rank])
        return {o: self.ranks[o] if o < len(self.ranks) else self.ranks[1 - rank] for o in range(self.layer.ep)}

    def prepare(
        self,
        order: Order,
        build: Build,
        *,
        local: bool = False,
        lists: Sequence[TaskLists] | None = None,
        stagger_ns: int = 0,
        stage: Stage | None = None,
        slots: Slots = "expert",
    ) -> Prepared:
        """Make, check and upload the task lists of an order, and load the kernel on every GPU.

        Parameters
        ----------
        order : Order
        build : Build
        local : bool
            Every row stays on its sender's GPU.
        lists : sequence of TaskLists, optional
            Of each rank, where they have been made already.
        stagger_ns : int
            By which the last CTA begins after the first one; the others between them.
        stage : Stage, optional
            What the pacer believes, where the build's claim is ``paced``.
        slots : {'expert', 'token'}
            How owners number their result slots (`layer.slot_numbers`).

        Raises
        ------
        UsageError
            Unsafe lists, a stagger out of range, or a paced build without a stage.
        """
        if not 0 <= stagger_ns <= LONGEST_STAGGER_NS:
            raise UsageError(f"a stagger of {stagger_ns} ns", f"0 to {LONGEST_STAGGER_NS}")
        if build.claim == "paced" and stage is None:
            raise UsageError("a paced build without a stage to believe in", "give model.stage.stage_at(model, SMs, 4)")
        if lists is None:
            lists = [task_lists(self.layer, rank.rows, order, self.gpus.sms, build.claim) for rank in self.ranks]
        for rank, one in zip(self.ranks, lists, strict=True):
            check_lists(one, rank.rows.blocks, self.layer.shape.linear1_tiles, self.layer.shape.linear2_tiles, build.claim)
            self.gpus.kernel(rank.device, build)
            rank.zeroed(build)  # all memory is taken before anything runs
            rank.load_slots(slots)
        uploaded = tuple(rank.upload(one, stamps=build.stamps) for rank, one in zip(self.ranks, lists, strict=True))
        if stage is not None and build.claim == "paced":
            for rank, one, parts in zip(self.ranks, lists, uploaded, strict=True):
                away = remote_tile_bytes(rank.rows, rank.rank, build.combine)
                parts.update(rank.upload_pacing(one, stage, 0 * away if local else away))
        return Prepared(order, build, local, tuple(lists), uploaded, stagger_ns, slots)

    def with_stamps(self, prepared: Prepared) -> Prepared:
        """Return the same lists, checked already, for the build whose tasks leave their times."""
        build = replace(prepared.build, stamps=True)
        for rank in self.ranks:
            self.gpus.kernel(rank.device, build)
        parts = zip(self.ranks, prepared.lists, prepared.uploaded, strict=True)
        return replace(prepared, build=build, uploaded=tuple({**old, **rank.upload(one, stamps=True)} for rank, one, old in parts))

    def run(self, prepared: Prepared, *, reduce: bool = False) -> tuple[Times, ...]:
        """Execute a layer once on all GPUs.

        Raises
        ------
        DeviceLostError
            A kernel did not end in time.
        """
        runtime = self._cupy.cuda.runtime
        plans = [
            rank.plan(
                lists,
                self.ranks,
                self.places(rank.rank, local=prepared.local),
                prepared.build,
                slots=prepared.slots,
                reduce=reduce,
                stagger_ns=prepared.stagger_ns,
            )
            for rank, lists in zip(self.ranks, prepared.uploaded, strict=True)
        ]
        for rank in self.ranks:  # uploads and fills go through the default stream, which the streams of the launches do not wait for
            runtime.setDevice(rank.device)
            runtime.streamSynchronize(0)
        for rank, plan, lists, stream in zip(self.ranks, plans, prepared.lists, self.gpus.streams, strict=True):
            runtime.setDevice(rank.device)
            for array in rank.zeroed(prepared.build):
                runtime.memsetAsync(array.data.ptr, 0, array.nbytes, stream.ptr)
            self.gpus.kernel(rank.device, prepared.build).launch(plan, lists.ctas, stream.ptr)
        give_up = time.monotonic() + HOST_TIMEOUT_S
        for stream in self.gpus.streams:
            while not stream.done:
                if time.monotonic() > give_up:
                    raise DeviceLostError("the MoE kernel does not end", "restart the process: its CUDA context is lost")
                time.sleep(20e-6)
            stream.synchronize()
        return tuple(_times(lists) for lists in prepared.uploaded)

    def stamps(self, prepared: Prepared, rank: int) -> NDArray[Any]:
        """Times of each task of a rank's last execution, a `STAMP` each."""
        return np.frombuffer(prepared.uploaded[rank]["stamps"].get().tobytes(), STAMP)

    def poison(self) -> None:
        """Fill every result slot of every GPU with what no result can be."""
        for rank in self.ranks:
            rank.poison()

    def worst_error(self, rank: int, build: Build, blocks: int | None = None, *, slots: Slots = "expert") -> float:
        """Compare the rows that a rank has sent with the float32 layer; the relative error of the worst block.

        Raises
        ------
        XStageError
            A block is wrong, or a row was not written; the message names it.
        """
        me, places = self.ranks[rank], self.places(rank)
        rows, worst = me.rows, 0.0
        slot = me.slot_of_rows(slots, presum=build.presum)
        for block in range(rows.blocks) if blocks is None else np.unique(np.linspace(0, rows.blocks - 1, blocks).astype(int)):
            at = np.arange(block * TILE, block * TILE + int(rows.block_rows[block]))
            if not at.size:  # nothing is routed to this rank
                continue
            expected = self._expected_sums(me, at) if build.presum else self._expected(me, at)
            got = np.empty_like(expected)
            for owner in np.unique(rows.owner[at]):
                mine = rows.owner[at] == owner
                place = places[owner]
                self.gpus.use(place.device)
                got[mine] = decode_rows(place.slots(owner, build)[slot[at][mine]]).get()
            error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
            if not error < tolerance(self.layer.dtype, build.combine):
                off = np.linalg.norm(got - expected, axis=1)
                row = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
                raise XStageError(
                    f"rank {rank}, block {block}: relative error {error:.3g}; row {row} (owner {rows.owner[at][row]}, token "
                    f"{rows.token[at][row]}) expected {expected[row, :4]}, found {got[row, :4]}",
                    "the kernel is wrong here: please report it",
                )
            worst = max(worst, error)
        return worst

    def _expected(self, me: Rank, at: NDArray[Any]) -> NDArray[Any]:
        """Results of some rows of a rank, all of one expert."""
        self.gpus.use(me.device)
        expert = int(me.rows.block_expert[at[0] // TILE])
        found: NDArray[Any] = expected_rows(self.layer, me.arrays["gathered"], me.arrays["row_scale"], me.weights, expert, at).get()
        return found

    def _expected_sums(self, me: Rank, at: NDArray[Any]) -> NDArray[Any]:
        """What leaves for the tokens of some rows of one expert: weighted sums over all rows that the rank has of each token."""
        sums = me.sums
        total = np.zeros((at.size, self.layer.shape.hidden), dtype=np.float32)
        place = dict(zip(sums.token[at].tolist(), range(at.size), strict=True))
        parts = np.flatnonzero(np.isin(sums.token, sums.token[at]))
        expert = me.rows.block_expert[parts // TILE]
        for one in np.unique(expert):
            mine = parts[expert == one]
            total[[place[token] for token in sums.token[mine].tolist()]] += sums.weight[mine, None] * self._expected(me, mine)
        return total

    def written(self, build: Build) -> tuple[int, int]:
        """Count the result rows that all GPUs hold, and those that should be there."""
        have = 0
        for rank in self.ranks:
            self.gpus.use(rank.device)
            for owner in range(self.layer.ep):
                have += int((~self._cupy.isnan(decode_rows(rank.slots(owner, build))).any(axis=1)).sum())
        if build.presum:
            return have, sum(rank.sums.sent for rank in self.ranks)
        return have, sum(int((rank.rows.owner != PADDING).sum()) for rank in self.ranks)


def _times(lists: dict[str, Any]) -> Times:
    report = np.frombuffer(lists["report"].get().tobytes(), REPORT)
    zero = int(report["begin_ns"].min())
    cycles, ns = (report[f"arrived_{unit}"] - report[f"begin_{unit}"] for unit in ("clock", "ns"))
    stored, arrived, end = (float(int(report[name].max()) - zero) for name in ("stored_ns", "arrived_ns", "end_ns"))
    return Times(stored, arrived, end, float(np.median(cycles / ns)) * 1e3)
