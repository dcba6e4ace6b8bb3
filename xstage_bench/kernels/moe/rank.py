"""One computing rank on its GPU: rows, weights, buffers that peers write, and the plan of a launch.

Ranks of a real group have a GPU each. In an emulated group two GPUs are the first two ranks, and every other rank's tokens and result slots
lie on the peer: what a sender does is what it would do among `ep` GPUs, what a receiver gets is not.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.pacing import packed_stage
from xstage_bench.kernels.moe.build import COMBINE_BYTES, PLAN, REPORT, STAMP, Build, owner_words
from xstage_bench.kernels.moe.layer import IntArray, Layer, Rows, Slots, slot_numbers
from xstage_bench.kernels.moe.numbers import RESULT_SCALE, Weights, activation_scales, make_tokens, make_weights
from xstage_bench.kernels.moe.order import TaskLists, linear2_from
from xstage_bench.kernels.moe.presum import Sums, sum_slots, sums_of, upload_sums
from xstage_bench.kernels.tensor_map import boxes
from xstage_bench.workloads.shapes import TILE

if TYPE_CHECKING:
    from xstage_bench.model.stage import Stage

TIMEOUT_NS = 2_000_000_000
POISON = 0xFF  # twice or four times: NaN, which no result is


class Stock:
    """What layers of one GPU share, made once: weights of a shape, tokens, and result slots as large as the largest layer needs.

    Only the newest weights and tokens are kept: a large model's fill a tenth of the memory.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._weights: tuple[Any, Weights] | None = None
        self._tokens: tuple[Any, list[tuple[Any, Any]]] | None = None
        self._slots: dict[int, Any] = {}

    def weights(self, layer: Layer, rank: int) -> Weights:
        """Return a rank's weights."""
        key = (layer.shape, layer.dtype, layer.ep, layer.seed, rank)
        if self._weights is None or self._weights[0] != key:
            self._weights = None
            self._weights = key, make_weights(layer, rank)
        return self._weights[1]

    def tokens(self, layer: Layer) -> list[tuple[Any, Any]]:
        """Return every owner's tokens and their scales."""
        key = (layer.shape.hidden, layer.dtype, layer.tokens, layer.ep, layer.seed)
        if self._tokens is None or self._tokens[0] != key:
            self._tokens = None
            self._tokens = key, [make_tokens(layer, owner) for owner in range(layer.ep)]
        return self._tokens[1]

    def slots(self, owner: int, size: int) -> Any:
        """Return at least `size` bytes for the result rows of an owner."""
        import cupy

        if owner not in self._slots or self._slots[owner].nbytes < size:
            self._slots.pop(owner, None)
            self._slots[owner] = cupy.empty(size, dtype=cupy.uint8)
        return self._slots[owner]


class Rank:
    """One computing rank and its memory. Slots are addressed as (owner, number).

    Parameters
    ----------
    layer : Layer
    rank : int
    rows : Rows
        Of this rank.
    stock : Stock
        Of its GPU.
    """

    def __init__(self, layer: Layer, rank: int, rows: Rows, stock: Stock) -> None:
        import cupy

        cupy.cuda.Device(stock.device).use()
        self.layer, self.rank, self.rows, self.device, self.epoch = layer, rank, rows, stock.device, 0
        s = layer.shape
        self.weights = stock.weights(layer, rank)
        self.tokens = stock.tokens(layer)
        self._sums: Sums | None = None
        self._sum_arrays: dict[str, Any] | None = None
        self._slot_arrays: dict[Slots, dict[str, Any]] = {}
        self._slots = {o: stock.slots(o, layer.tokens * max(s.top_k, layer.ep) * s.hidden * 4) for o in range(layer.ep)}
        count, element = rows.blocks * TILE, cupy.uint8 if layer.dtype == "fp8" else cupy.uint16
        self.arrays: dict[str, Any] = {
            "gathered": cupy.zeros((count, s.hidden), dtype=element),
            "row_scale": cupy.ones(count, dtype=cupy.float32),
            "activations": cupy.zeros((count, s.inter), dtype=element),
            "act_scale": activation_scales(layer, count),
            "block_expert": cupy.asarray(rows.block_expert.astype(np.uint32)),
            "block_rows": cupy.asarray(rows.block_rows.astype(np.uint32)),
            "row_source": cupy.asarray(owner_words(rows.owner, rows.token)),
            "ready": cupy.zeros(rows.blocks, dtype=cupy.uint32),
            "arrived": cupy.zeros(rows.blocks, dtype=cupy.uint32),
            "claimed": cupy.zeros(1, dtype=cupy.uint32),
            "counts": cupy.zeros(64, dtype=cupy.uint32),
            "weights": cupy.asarray(layer.weights()[rank].ravel()),
            "out": cupy.empty((layer.tokens, s.hidden), dtype=cupy.uint16),
        }
        self._tensors = self._encode()
        self.gather()

    def _encode(self) -> dict[str, NDArray[np.uint64]]:
        s, a, w, element = self.layer.shape, self.arrays, self.weights, self.layer.element_bytes
        step, count, experts = 128 // element, self.rows.blocks * TILE, self.layer.local_experts
        return {
            "rows": boxes(a["gathered"].data.ptr, element, (s.hidden, count, 1), (step, TILE)),
            "w1": boxes(w.w1.data.ptr, element, (s.hidden, 2 * s.inter, experts), (step, TILE)),
            "act": boxes(a["activations"].data.ptr, element, (s.inter, count, 1), (step, TILE)),
            "w2": boxes(w.w2.data.ptr, element, (s.inter, s.hidden, experts), (step, TILE)),
            "act_out": boxes(a["activations"].data.ptr, element, (s.inter, count, 1), (TILE // 2, 16)),
        }

    def slots(self, owner: int, build: Build) -> Any:
        """Return the result rows of an owner on this GPU, encoded, shape (slots, hidden): a slot for each (token, k), or (token, rank)."""
        hidden, each = self.layer.shape.hidden, self.layer.ep if build.presum else self.layer.shape.top_k
        raw = self._slots[owner][: self.layer.tokens * each * hidden * COMBINE_BYTES[build.combine]]
        return raw.view({"bf16": np.uint16, "f32": np.float32, "fp8": np.uint8}[build.combine]).reshape(-1, hidden)

    def slot_of_rows(self, slots: Slots, *, presum: bool = False) -> IntArray:
        """Number of the slot, at its owner, that each of this rank's rows goes to; of padding, any."""
        rows = self.rows
        return sum_slots(self.layer)[rows.token, self.rank] if presum else slot_numbers(self.layer, slots)[rows.owner, rows.token, rows.k]

    def load_slots(self, slots: Slots) -> dict[str, Any]:
        """Return where rows go and where this rank's tokens find theirs; the first call uploads it."""
        import cupy

        if slots not in self._slot_arrays:
            cupy.cuda.Device(self.device).use()
            own = slot_numbers(self.layer, slots)[self.rank]
            self._slot_arrays[slots] = {
                "row_slot": cupy.asarray(owner_words(self.rows.owner, self.slot_of_rows(slots))),
                "slot_of": cupy.asarray(own.astype(np.uint32).ravel()),
            }
        return self._slot_arrays[slots]

    @property
    def sums(self) -> Sums:
        """What of this rank's rows is summed before sending."""
        if self._sums is None:
            self._sums = sums_of(self.layer, self.rows)
        return self._sums

    def load_sums(self) -> dict[str, Any]:
        """Return the arrays of sums before sending; the first call takes their memory."""
        import cupy

        if self._sum_arrays is None:
            cupy.cuda.Device(self.device).use()
            self._sum_arrays = upload_sums(self.layer, self.rank, self.rows, self.sums)
        return self._sum_arrays

    def zeroed(self, build: Build) -> list[Any]:
        """Return the arrays that must be zero when the kernel begins."""
        sums = self.load_sums() if build.presum else {}
        return [*(self.arrays[name] for name in ("ready", "arrived", "claimed")), *(sums[name] for name in ("sums", "sum_counts") if sums)]

    def gather(self) -> None:
        """Bring the rows by ordinary means: the kernel's input without dispatch, and what its dispatch is compared with."""
        for owner in range(self.layer.ep):
            mine = np.flatnonzero(self.rows.owner == owner)
            self.arrays["gathered"][mine] = self.tokens[owner][0][self.rows.token[mine]]
            self.arrays["row_scale"][mine] = self.tokens[owner][1][self.rows.token[mine]]

    def upload(self, lists: TaskLists, *, stamps: bool) -> dict[str, Any]:
        """Return the task lists on this GPU, with room for their times."""
        import cupy

        cupy.cuda.Device(self.device).use()
        room = STAMP.itemsize * (lists.words.size if stamps else 1)
        return {
            "tasks": cupy.asarray(lists.words),
            "first": cupy.asarray(lists.first.astype(np.uint32)),
            "stamps": cupy.zeros(room, dtype=cupy.uint8),
            "report": cupy.zeros(REPORT.itemsize * lists.ctas, dtype=cupy.uint8),
        }

    def upload_pacing(self, lists: TaskLists, stage: Stage, tile_bytes: NDArray[np.int64]) -> dict[str, Any]:
        """Return what a paced claim reads: where each CTA's Linear-2 tiles begin, what a tile of each block sends away, the stage."""
        import cupy

        cupy.cuda.Device(self.device).use()
        return {
            "seconds": cupy.asarray(linear2_from(lists).astype(np.uint32)),
            "remote_bytes": cupy.asarray(tile_bytes.astype(np.uint32)),
            "stage": cupy.asarray(packed_stage(stage).view(np.uint8)),
        }

    def plan(
        self,
        lists: dict[str, Any],
        peers: list[Rank],
        places: dict[int, Rank],
        build: Build,
        *,
        slots: Slots = "expert",
        reduce: bool = False,
        stagger_ns: int = 0,
    ) -> NDArray[Any]:
        """Return the plan of one launch; each call counts an epoch, so each plan is launched once.

        Parameters
        ----------
        lists : dict
            Of `upload`, and of `upload_pacing` where tasks are paced.
        peers : list of Rank
            All computing ranks, this one too.
        places : dict of owner to Rank
            Whose GPU has the owner's tokens and slots.
        build : Build
            Of the kernel.
        slots : {'expert', 'token'}
            How owners number their slots, of every rank the same.
        reduce : bool
            Sum the rows of this rank's own tokens at the end.
        stagger_ns : int
            By which the last CTA begins after the first one; the others between them.
        """
        self.epoch += 1
        s, layer, a = self.layer.shape, self.layer, self.arrays
        plan = np.zeros(1, PLAN)
        for name, tensor in self._tensors.items():
            plan[name][0] = tensor
        for name in ("gathered", "row_scale", "activations", "act_scale", "block_expert", "block_rows", "row_source"):
            plan[name] = a[name].data.ptr
        for name in ("ready", "arrived", "claimed", "weights", "out"):
            plan[name] = a[name].data.ptr
        scales = (("w1_scale", self.weights.w1_scale), ("w2_scale", self.weights.w2_scale))
        for name, array in (*scales, *self.load_slots(slots).items(), *lists.items()):
            plan[name] = array.data.ptr
        for owner, place in places.items():
            plan["sources"][0, owner] = place.tokens[owner][0].data.ptr
            plan["source_scales"][0, owner] = place.tokens[owner][1].data.ptr
            plan["slots"][0, owner] = place.address(owner)
        for i, peer in enumerate(peers):
            plan["finished"][0, i] = peer.arrays["counts"].data.ptr
            plan["started"][0, i] = peer.arrays["counts"].data.ptr + 128
        plan["own_slots"] = self.address(self.rank)
        plan["own_finished"], plan["own_started"] = a["counts"].data.ptr, a["counts"].data.ptr + 128
        plan["result_scale"], plan["result_inverse"] = RESULT_SCALE, 1 / RESULT_SCALE
        plan["timeout_ns"], plan["hidden"], plan["inter"], plan["blocks"] = TIMEOUT_NS, s.hidden, s.inter, self.rows.blocks
        plan["ranks"], plan["epoch"], plan["tokens"], plan["top_k"], plan["reduce"] = (
            len(peers),
            self.epoch,
            layer.tokens,
            s.top_k,
            int(reduce),
        )
        if build.presum:
            plan["top_k"] = layer.ep
            for name, array in self.load_sums().items():
                plan[name] = array.data.ptr
        plan["stagger_ns"] = stagger_ns
        return plan

    def address(self, owner: int) -> int:
        """Address of an owner's result rows on this GPU."""
        return int(self._slots[owner].data.ptr)

    def poison(self) -> None:
        """Fill every slot with what no result can be."""
        import cupy

        cupy.cuda.Device(self.device).use()
        for slots in self._slots.values():
            cupy.cuda.runtime.memset(slots.data.ptr, POISON, slots.nbytes)
        cupy.cuda.runtime.deviceSynchronize()


class Kernel:
    """The kernel of one build, loaded on one GPU."""

    def __init__(self, device: int, build: Build) -> None:
        from cuda.bindings import driver
        from cupy.cuda import runtime

        self._driver, self._runtime, self.device, self.build = driver, runtime, device, build
        runtime.setDevice(device)
        runtime.free(0)
        self._module = self._call(driver.cuModuleLoadData(build.cubin()))
        self._function = self._call(driver.cuModuleGetFunction(self._module, b"xstage_moe"))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call(driver.cuFuncSetAttribute(self._function, limit, build.shared_bytes))

    def launch(self, plan: NDArray[Any], ctas: int, stream: int) -> None:
        """Start the kernel and return at once; all CTAs must be resident, so `ctas` is at most the number of SMs."""
        self._runtime.setDevice(self.device)
        arguments = (ctypes.c_void_p * 1)(plan.ctypes.data)
        driver = self._driver
        self._call(
            driver.cuLaunchKernel(
                self._function, ctas, 1, 1, 384, 1, 1, self.build.shared_bytes, driver.CUstream(stream), ctypes.addressof(arguments), 0
            )
        )

    def _call(self, result: tuple[Any, ...]) -> Any:
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"GPU {self.device}: {result[0].name}")
        return result[1] if len(result) == 2 else None
