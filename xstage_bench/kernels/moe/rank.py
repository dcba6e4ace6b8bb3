"""One computing rank on its GPU: rows, weights, buffers that peers write, and the plan of a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.tensor_map import boxes
from xstage_bench.kernels.gpu import POISON_BYTE, TIMEOUT_NS, PeerGpu
from xstage_bench.kernels.moe.build import COMBINE_BYTES, PLAN, REPORT, STAMP, MoeBuild, owner_words
from xstage_bench.kernels.moe.layer import ExpertRows, IntArray, Layer, slot_numbers
from xstage_bench.kernels.moe.numbers import RESULT_SCALE, Weights, activation_scales, make_tokens, make_weights
from xstage_bench.kernels.moe.order import TaskLists
from xstage_bench.workloads.shapes import TILE

#: Where in a rank's counts that of the ranks that have begun lies, bytes; that of the CTAs that have stored everything lies first.
_STARTED_AT = 128


class Stock:
    """What layers of one GPU share, made once: weights of a shape, tokens, and result slots as large as the largest layer needs.

    Only the newest weights and tokens are kept: a large model's fill a tenth of the memory.
    """

    def __init__(self) -> None:
        self._newest: dict[str, tuple[Any, Any]] = {}
        self._slots: dict[int, Any] = {}

    def _kept(self, what: str, key: Any, make: Callable[[], Any]) -> Any:
        if self._newest.get(what, (None, None))[0] != key:
            self._newest.pop(what, None)  # its memory first
            self._newest[what] = key, make()
        return self._newest[what][1]

    def weights(self, layer: Layer, rank: int) -> Weights:
        """Return a rank's weights."""
        key = (layer.shape, layer.dtype, layer.ep, layer.seed, rank)
        found: Weights = self._kept("weights", key, lambda: make_weights(layer, rank))
        return found

    def tokens(self, layer: Layer) -> list[tuple[Any, Any]]:
        """Return every owner's tokens and their scales."""
        key = (layer.shape.hidden, layer.dtype, layer.tokens, layer.ep, layer.seed)
        found: list[tuple[Any, Any]] = self._kept("tokens", key, lambda: [make_tokens(layer, owner) for owner in range(layer.ep)])
        return found

    def slots(self, owner: int, size: int) -> Any:
        """Return at least `size` bytes for the result rows of an owner."""
        import cupy

        if owner not in self._slots or self._slots[owner].nbytes < size:
            self._slots.pop(owner, None)
            self._slots[owner] = cupy.empty(size, dtype=cupy.uint8)
        return self._slots[owner]


class Rank:
    """One computing rank, its rows and its memory. Slots are addressed as (owner, number)."""

    def __init__(self, layer: Layer, rank: int, rows: ExpertRows, gpu: PeerGpu, stock: Stock) -> None:
        import cupy

        gpu.use()
        self.layer, self.rank, self.rows, self.gpu, self.epoch = layer, rank, rows, gpu, 0
        s = layer.shape
        self.weights, self.tokens = stock.weights(layer, rank), stock.tokens(layer)
        numbers = slot_numbers(layer)
        #: Number of the slot, at its owner, that each of this rank's rows goes to; of padding, any.
        self.slot_of_rows: IntArray = numbers[rows.owner, rows.token, rows.k]
        self._slots = {o: stock.slots(o, layer.tokens * s.top_k * s.hidden * 4) for o in range(layer.ep)}
        count, element = rows.blocks * TILE, cupy.uint8 if layer.dtype == "fp8" else cupy.uint16
        #: By the plan's names.
        self.arrays: dict[str, Any] = {
            "gathered": cupy.zeros((count, s.hidden), dtype=element), "row_scale": cupy.ones(count, dtype=cupy.float32),
            "activations": cupy.zeros((count, s.inter), dtype=element), "act_scale": activation_scales(layer, count),
            "block_expert": cupy.asarray(rows.block_expert.astype(np.uint32)),
            "block_rows": cupy.asarray(rows.block_rows.astype(np.uint32)), "row_source": cupy.asarray(owner_words(rows.owner, rows.token)),
            "row_slot": cupy.asarray(owner_words(rows.owner, self.slot_of_rows)),
            "slot_of": cupy.asarray(numbers[rank].astype(np.uint32).ravel()), "ready": cupy.zeros(rows.blocks, dtype=cupy.uint32),
            "arrived": cupy.zeros(rows.blocks, dtype=cupy.uint32), "weights": cupy.asarray(layer.weights()[rank].ravel()),
            "out": cupy.empty((layer.tokens, s.hidden), dtype=cupy.uint16), "w1_scale": self.weights.w1_scale,
            "w2_scale": self.weights.w2_scale,
        }  # fmt: skip
        self._counts = cupy.zeros(64, dtype=cupy.uint32)
        size = layer.element_bytes
        self._tensors = {
            name: boxes(array.data.ptr, size, shape, (128 // size, TILE))
            for name, array, shape in (
                ("rows", self.arrays["gathered"], (s.hidden, count, 1)),
                ("w1", self.weights.w1, (s.hidden, 2 * s.inter, layer.local_experts)),
                ("act", self.arrays["activations"], (s.inter, count, 1)),
                ("w2", self.weights.w2, (s.inter, s.hidden, layer.local_experts)),
            )
        }
        self.gather()

    def slots(self, owner: int, build: MoeBuild) -> Any:
        """Return the result rows of an owner on this GPU, encoded, shape (slots, hidden): a slot for each (token, k)."""
        s = self.layer.shape
        raw = self._slots[owner][: self.layer.tokens * s.top_k * s.hidden * COMBINE_BYTES[build.combine]]
        return raw.view({"bf16": np.uint16, "f32": np.float32, "fp8": np.uint8}[build.combine]).reshape(-1, s.hidden)

    def clear(self) -> None:
        """Queue the zeroing of the counts that the kernel begins with."""
        import cupy

        for name in ("ready", "arrived"):
            array = self.arrays[name]
            cupy.cuda.runtime.memsetAsync(array.data.ptr, 0, array.nbytes, self.gpu.stream.ptr)

    def gather(self) -> None:
        """Bring the rows by ordinary means: the kernel's input without dispatch, and what its dispatch is compared with."""
        for owner in range(self.layer.ep):
            mine = np.flatnonzero(self.rows.owner == owner)
            self.arrays["gathered"][mine] = self.tokens[owner][0][self.rows.token[mine]]
            self.arrays["row_scale"][mine] = self.tokens[owner][1][self.rows.token[mine]]

    def upload(self, lists: TaskLists, *, stamps: bool) -> dict[str, Any]:
        """Return the task lists on this GPU, with room for their times."""
        import cupy

        self.gpu.use()
        return {
            "tasks": cupy.asarray(lists.words),
            "first": cupy.asarray(lists.first.astype(np.uint32)),
            "stamps": cupy.zeros(STAMP.itemsize * (lists.words.size if stamps else 1), dtype=cupy.uint8),
            "report": cupy.zeros(REPORT.itemsize * lists.ctas, dtype=cupy.uint8),
        }

    def plan(self, lists: dict[str, Any], peers: list[Rank], places: dict[int, Rank], *, reduce: bool = False) -> NDArray[Any]:
        """Return the plan of one launch; each call counts an epoch, so each plan is launched once.

        `lists` are of `upload`, `peers` all computing ranks, this one too, and `places` whose GPU has each owner's tokens and slots.
        `reduce`: sum the rows of this rank's own tokens at the end.
        """
        self.epoch += 1
        s, plan = self.layer.shape, np.zeros(1, PLAN)
        for name, tensor in self._tensors.items():
            plan[name][0] = tensor
        for name, array in {**self.arrays, **lists}.items():
            plan[name] = array.data.ptr
        for owner, place in places.items():
            plan["sources"][0, owner], plan["source_scales"][0, owner] = (array.data.ptr for array in place.tokens[owner])
            plan["slots"][0, owner] = place.address(owner)
        for i, peer in enumerate(peers):
            plan["finished"][0, i], plan["started"][0, i] = peer.counts
        plan["own_slots"] = self.address(self.rank)
        plan["own_finished"], plan["own_started"] = self.counts
        plan["result_scale"], plan["result_inverse"] = RESULT_SCALE, 1 / RESULT_SCALE
        plan["timeout_ns"], plan["hidden"], plan["inter"], plan["blocks"] = TIMEOUT_NS, s.hidden, s.inter, self.rows.blocks
        plan["ranks"], plan["epoch"], plan["tokens"], plan["top_k"] = len(peers), self.epoch, self.layer.tokens, s.top_k
        plan["reduce"] = reduce
        return plan

    @property
    def counts(self) -> tuple[int, int]:
        """Addresses of the counts of CTAs that have stored everything, and of ranks that have begun."""
        return self._counts.data.ptr, self._counts.data.ptr + _STARTED_AT

    def address(self, owner: int) -> int:
        """Address of an owner's result rows on this GPU."""
        return int(self._slots[owner].data.ptr)

    def poison(self) -> None:
        """Fill every slot with what no result can be."""
        import cupy

        self.gpu.use()
        for slots in self._slots.values():
            cupy.cuda.runtime.memset(slots.data.ptr, POISON_BYTE, slots.nbytes)
        self.gpu.synchronize()
