"""The computing ranks together: launch a layer on all GPUs, read its times, and say whether every result row is right."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DeviceLostError, UsageError, XStageError
from xstage_bench.workloads.shapes import TILE

from .build import REPORT, STAMP, Build
from .layer import PADDING, Layer
from .numbers import TOLERANCE, decode, expected_rows
from .order import Order, TaskLists, check_lists, task_lists
from .rank import Kernel, Rank

HOST_TIMEOUT_S = 20.0


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
    """

    stored_ns: float
    arrived_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """One order on all ranks, its lists checked and uploaded."""

    order: Order
    build: Build
    lists: tuple[TaskLists, ...]
    uploaded: tuple[dict[str, Any], ...]


class Group:
    """A layer on its GPUs.

    Parameters
    ----------
    layer : Layer
    devices : tuple of int
        GPUs of ranks 0, 1, ...: as many as ranks, or two for an emulated group.
    combine : {'none', 'bf16', 'f32'}
        What a result row consists of.
    """

    def __init__(self, layer: Layer, devices: tuple[int, ...], combine: str = "bf16") -> None:
        import cupy
        from cupy.cuda import runtime

        if len(devices) != layer.ep and len(devices) != 2:
            raise UsageError(f"{layer.ep} ranks on {len(devices)} GPUs", "as many GPUs as ranks, or two for an emulated group")
        self.layer, self.devices, self._cupy = layer, devices, cupy
        self.emulated = len(devices) != layer.ep
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
        self.ranks = [Rank(layer, r, device, combine, True) for r, device in enumerate(devices)]
        computing = set(range(len(devices)))
        for rank in self.ranks:
            rank.prepare({o: rank.rank for o in range(layer.ep) if o == rank.rank or o not in computing})
        self.places = [{o: self.ranks[o] if o in computing else self.ranks[1 - r] for o in range(layer.ep)} for r in range(len(devices))]
        self.streams = []
        for device in devices:
            cupy.cuda.Device(device).use()
            self.streams.append(cupy.cuda.Stream(non_blocking=True))
        self.ctas = int(runtime.getDeviceProperties(devices[0])["multiProcessorCount"])
        self._kernels: dict[tuple[int, Build], Kernel] = {}

    def prepare(self, order: Order, build: Build) -> Prepared:
        """Make, check and upload the task lists of an order, and load the kernel on every GPU."""
        lists = tuple(task_lists(self.layer, rank.rows, order, self.ctas) for rank in self.ranks)
        for rank, one in zip(self.ranks, lists, strict=True):
            check_lists(one, rank.rows.blocks, self.layer.shape.linear1_tiles, self.layer.shape.linear2_tiles)
        for device in self.devices:
            if (device, build) not in self._kernels:
                self._kernels[device, build] = Kernel(device, build)
        uploaded = tuple(rank.upload(one, stamps=build.stamps) for rank, one in zip(self.ranks, lists, strict=True))
        return Prepared(order, build, lists, uploaded)

    def run(self, prepared: Prepared, *, reduce: bool = False) -> tuple[Times, ...]:
        """Execute a layer once on all GPUs.

        Raises
        ------
        DeviceLostError
            A kernel did not end in time.
        """
        plans = [
            rank.plan(lists, self.ranks, places, reduce=reduce)
            for rank, lists, places in zip(self.ranks, prepared.uploaded, self.places, strict=True)
        ]
        runtime = self._cupy.cuda.runtime
        for rank, plan, stream in zip(self.ranks, plans, self.streams, strict=True):
            runtime.setDevice(rank.device)
            for name in ("ready", "arrived"):
                runtime.memsetAsync(rank.arrays[name].data.ptr, 0, rank.arrays[name].nbytes, stream.ptr)
            self._kernels[rank.device, prepared.build].launch(plan, self.ctas, stream.ptr)
        give_up = time.monotonic() + HOST_TIMEOUT_S
        for stream in self.streams:
            while not stream.done:
                if time.monotonic() > give_up:
                    raise DeviceLostError("the MoE kernel does not end", "restart the process: its CUDA context is lost")
                time.sleep(20e-6)
            stream.synchronize()
        return tuple(self._times(lists) for lists in prepared.uploaded)

    def stamps(self, prepared: Prepared, rank: int) -> NDArray[Any]:
        """Times of each task of a rank's last execution, a `STAMP` each."""
        return np.frombuffer(prepared.uploaded[rank]["stamps"].get().tobytes(), STAMP)

    def poison(self) -> None:
        """Fill every result slot of every GPU with what no result can be."""
        for rank in self.ranks:
            rank.poison()

    def worst_error(self, rank: int, blocks: int | None = None) -> float:
        """Compare the rows that a rank has sent with the float32 layer; the relative error of the worst block.

        Raises
        ------
        XStageError
            A row is wrong, or was not written; the message names it.
        """
        me, places = self.ranks[rank], self.places[rank]
        self._cupy.cuda.Device(me.device).use()
        rows, worst = me.rows, 0.0
        some = range(rows.blocks) if blocks is None else np.unique(np.linspace(0, rows.blocks - 1, blocks).astype(int))
        for block in some:
            expected = expected_rows(self.layer, rows, me.arrays["gathered"], me.arrays["row_scale"], me.weights, int(block)).get()
            at = slice(block * TILE, block * TILE + int(rows.block_rows[block]))
            got = np.empty_like(expected)
            for owner in np.unique(rows.owner[at]):
                mine = rows.owner[at] == owner
                got[mine] = self._slots(places[owner], owner, rows.token[at][mine] * self.layer.shape.top_k + rows.k[at][mine])
                self._cupy.cuda.Device(me.device).use()
            error = np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)
            bad = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
            if not error[bad] < TOLERANCE[self.layer.dtype]:
                raise XStageError(
                    f"rank {rank}, block {block}, row {bad} (owner {rows.owner[at][bad]}, token {rows.token[at][bad]}): "
                    f"relative error {error[bad]:.3g}; expected {expected[bad, :4]}, found {got[bad, :4]}",
                    "the kernel is wrong here: please report it",
                )
            worst = max(worst, float(error[bad]))
        return worst

    def written(self) -> tuple[int, int]:
        """Count the result rows that all GPUs hold, and those that should be there."""
        have = want = 0
        for place in self.ranks:
            self._cupy.cuda.Device(place.device).use()
            for slots in place.slots.values():
                have += int((~self._cupy.isnan(decode_rows(slots)).any(axis=1)).sum())
        for r in self.ranks:
            want += int((r.rows.owner != PADDING).sum())
        return have, want

    def _times(self, lists: dict[str, Any]) -> Times:
        report = np.frombuffer(lists["report"].get().tobytes(), REPORT)
        zero = int(report["begin_ns"].min())
        return Times(*(float(int(report[name].max()) - zero) for name in ("stored_ns", "arrived_ns", "end_ns")))

    def _slots(self, place: Rank, owner: int, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        self._cupy.cuda.Device(place.device).use()
        return np.asarray(decode_rows(place.slots[owner][slots]).get())


def decode_rows(rows: Any) -> Any:
    """Return float32 of result rows."""
    return rows if rows.dtype == np.float32 else decode(rows)
