"""The GPU of one rank: the instrument of `worker.BurstGpu`, for windows whose address came from elsewhere."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from xstage_bench.device.cuda import layout
from xstage_bench.device.cuda.gpu import gpu_count, load_eagerly
from xstage_bench.device.cuda.worker import BurstGpu


class RankGpu(BurstGpu):
    """One GPU with every kernel loaded.

    Parameters
    ----------
    local_rank : int
        Rank within the node; ranks are dealt to the GPUs that this process can see.
    """

    def __init__(self, local_rank: int) -> None:
        load_eagerly()
        super().__init__(local_rank % gpu_count())

    def execute(self, batch: layout.Batch, address: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Execute a batch into the window at `address`; its stamps and verdicts."""
        arrays = {"items": batch.items, "bursts": batch.bursts, "producer_of": batch.producer_of}
        longest_s = max(layout.duration_s(e.schedule, self.sm_clock_mhz) for e in batch.executions)
        self.start(0, address, arrays, batch.stamps, longest_s)
        stamps, verdicts, _ = self.collect(0, batch.stamps)
        return stamps, verdicts
