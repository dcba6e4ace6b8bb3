"""The computing ranks together: launch a layer on all GPUs, read its times, and say whether every result row is right.

Ranks of a real group have a GPU each. In an emulated group two GPUs are the first two ranks, and every other rank's tokens and result slots
lie on the peer: what a sender does is what it would do among `ep` GPUs, what a receiver gets is not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DeviceLostError, UsageError, XStageError
from xstage_bench.kernels.gpu import PeerGpu
from xstage_bench.kernels.moe.build import REPORT, STAMP, MoeBuild
from xstage_bench.kernels.moe.layer import PADDING, ExpertRows, Layer, rows_of
from xstage_bench.kernels.moe.numbers import decode_rows, expected_rows, tolerance
from xstage_bench.kernels.moe.order import Order, TaskLists, check_lists, task_lists
from xstage_bench.kernels.moe.rank import Rank, Stock
from xstage_bench.workloads.shapes import TILE

HOST_TIMEOUT_S = 20.0
_REPORT_IT = "the kernel is wrong here: please report it"


@dataclass(frozen=True, slots=True)
class Times:
    """One execution of a layer on one GPU, ns after the common start.

    `stored_ns`: the last CTA has issued its last store, what the sender sees. `arrived_ns`: every rank has stored everything and it is
    visible here. `end_ns`: the tokens' rows are summed. `sm_clock_mhz`: from the start until `arrived_ns`, in the mean; under power limits
    it falls.
    """

    stored_ns: float
    arrived_ns: float
    end_ns: float
    sm_clock_mhz: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """One order on all ranks, its lists checked and uploaded. `local`: every row stays on its sender's GPU."""

    order: Order
    build: MoeBuild
    local: bool
    lists: tuple[TaskLists, ...]
    uploaded: tuple[dict[str, Any], ...]


class Gpus:
    """The GPUs of a group and the stock of each; layers come and go."""

    def __init__(self, devices: tuple[int, ...]) -> None:
        import cupy

        cupy.cuda.set_allocator(None)  # plain cudaMalloc: what comes from a pool is not visible to peers
        self.devices, self.all = devices, [PeerGpu(device) for device in devices]
        for gpu in self.all:
            gpu.reach(devices)
        self.stocks = [Stock() for _ in devices]
        self.sms = min(gpu.sms for gpu in self.all)


class ExpertGroup:
    """A layer on its GPUs: as many as ranks, or two for an emulated group; `rows` of each computing rank are made unless they are there."""

    def __init__(self, layer: Layer, gpus: Gpus, rows: Sequence[ExpertRows] | None = None) -> None:
        n = len(gpus.devices)
        if n != layer.ep and (n != 2 or layer.ep < 2):
            raise UsageError(f"{layer.ep} ranks on {n} GPUs", "as many GPUs as ranks, or two for an emulated group")
        self.layer, self.gpus = layer, gpus
        rows = [rows_of(layer, r) for r in range(n)] if rows is None else rows
        self.ranks = [Rank(layer, r, *parts) for r, parts in enumerate(zip(rows, gpus.all, gpus.stocks, strict=True))]

    @property
    def emulated(self) -> bool:
        """Whether some of the ranks do not exist."""
        return len(self.ranks) != self.layer.ep

    def places(self, rank: int, *, local: bool = False) -> dict[int, Rank]:
        """Return on whose GPU each owner's slots and tokens lie, for one sender."""
        if local:
            return dict.fromkeys(range(self.layer.ep), self.ranks[rank])
        return {o: self.ranks[o] if o < len(self.ranks) else self.ranks[1 - rank] for o in range(self.layer.ep)}

    def prepare(self, order: Order, build: MoeBuild, *, local: bool = False, lists: Sequence[TaskLists] | None = None) -> Prepared:
        """Check and upload the task lists of an order, made unless they are there, and load the kernel; `UsageError`: unsafe lists."""
        if lists is None:
            lists = [task_lists(self.layer, rank.rows, order, self.gpus.sms) for rank in self.ranks]
        for rank, one in zip(self.ranks, lists, strict=True):
            check_lists(one, rank.rows.blocks, self.layer.shape.linear1_tiles, self.layer.shape.linear2_tiles)
        return self._loaded(Prepared(order, build, local, tuple(lists), ()))

    def with_stamps(self, prepared: Prepared) -> Prepared:
        """Return the same lists, checked already, for the build whose tasks leave their times."""
        return self._loaded(replace(prepared, build=replace(prepared.build, stamps=True)))

    def _loaded(self, prepared: Prepared) -> Prepared:
        """All kernels are loaded and all memory is taken before anything runs."""
        for rank in self.ranks:
            rank.gpu.kernel(prepared.build)
        parts = zip(self.ranks, prepared.lists, strict=True)
        return replace(prepared, uploaded=tuple(rank.upload(one, stamps=prepared.build.stamps) for rank, one in parts))

    def run(self, prepared: Prepared, *, reduce: bool = False) -> tuple[Times, ...]:
        """Execute a layer once on all GPUs; `DeviceLostError`: a kernel did not end in time."""
        import cupy

        plans = [
            rank.plan(lists, self.ranks, self.places(rank.rank, local=prepared.local), reduce=reduce)
            for rank, lists in zip(self.ranks, prepared.uploaded, strict=True)
        ]
        for rank in self.ranks:  # uploads and fills go through the default stream, which the streams of the launches do not wait for
            rank.gpu.use()
            cupy.cuda.runtime.streamSynchronize(0)
        for rank, plan, lists in zip(self.ranks, plans, prepared.lists, strict=True):
            rank.gpu.use()
            rank.clear()
            rank.gpu.kernel(prepared.build).launch(plan, rank.gpu.stream.ptr, lists.ctas)  # all resident: one for each SM
        give_up = time.monotonic() + HOST_TIMEOUT_S
        for rank in self.ranks:
            while not rank.gpu.stream.done:
                if time.monotonic() > give_up:
                    raise DeviceLostError("the MoE kernel does not end", "restart the process: its CUDA context is lost")
                time.sleep(20e-6)
            rank.gpu.stream.synchronize()
        return tuple(_times(lists) for lists in prepared.uploaded)

    def stamps(self, prepared: Prepared, rank: int) -> NDArray[Any]:
        """Times of each task of a rank's last execution, a `STAMP` each."""
        return np.frombuffer(prepared.uploaded[rank]["stamps"].get().tobytes(), STAMP)

    def poison(self) -> None:
        """Fill every result slot of every GPU with what no result can be."""
        for rank in self.ranks:
            rank.poison()

    def worst_error(self, rank: int, build: MoeBuild, blocks: int | None = None) -> float:
        """Compare the rows that a rank has sent with the float32 layer; the relative error of the worst block.

        `XStageError`: a block is wrong, or a row was not written; the message names it.
        """
        me, places = self.ranks[rank], self.places(rank)
        rows, worst = me.rows, 0.0
        for block in range(rows.blocks) if blocks is None else np.unique(np.linspace(0, rows.blocks - 1, blocks).astype(int)):
            at = np.arange(block * TILE, block * TILE + int(rows.block_rows[block]))
            if not at.size:  # nothing is routed to this rank
                continue
            me.gpu.use()
            inputs = me.arrays["gathered"], me.arrays["row_scale"], me.weights
            expected = expected_rows(self.layer, *inputs, int(rows.block_expert[block]), at).get()
            got = np.empty_like(expected)
            for owner in np.unique(rows.owner[at]):
                mine = rows.owner[at] == owner
                places[owner].gpu.use()
                got[mine] = decode_rows(places[owner].slots(owner, build)[me.slot_of_rows[at][mine]]).get()
            error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
            if not error < tolerance(self.layer.dtype, build.combine):
                off = np.linalg.norm(got - expected, axis=1)
                row = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
                raise XStageError(
                    f"rank {rank}, block {block}: relative error {error:.3g}; row {row} (owner {rows.owner[at][row]}, token "
                    f"{rows.token[at][row]}) expected {expected[row, :4]}, found {got[row, :4]}",
                    _REPORT_IT,
                )
            worst = max(worst, error)
        return worst

    def check_written(self, build: MoeBuild) -> None:
        """Count the result rows that all GPUs hold; `XStageError`: they are not as many as should be there."""
        have = 0
        for rank in self.ranks:
            rank.gpu.use()
            for owner in range(self.layer.ep):
                rows = decode_rows(rank.slots(owner, build))
                have += int((rows == rows).all(axis=1).sum())  # no NaN
        want = sum(int((rank.rows.owner != PADDING).sum()) for rank in self.ranks)
        if have != want:
            raise XStageError(f"{have} result rows were written, {want} should be", _REPORT_IT)


def _times(lists: dict[str, Any]) -> Times:
    report = np.frombuffer(lists["report"].get().tobytes(), REPORT)
    zero = int(report["begin_ns"].min())
    cycles, ns = (report[f"arrived_{unit}"] - report[f"begin_{unit}"] for unit in ("clock", "ns"))
    stored, arrived, end = (float(int(report[name].max()) - zero) for name in ("stored_ns", "arrived_ns", "end_ns"))
    return Times(stored, arrived, end, float(np.median(cycles / ns)) * 1e3)
