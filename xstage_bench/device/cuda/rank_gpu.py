"""The GPU of one rank: the instrument of `worker.Source`, for windows whose address came from elsewhere."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda import layout

WINDOW_BYTES = layout.MAX_PRODUCERS * layout.WINDOW_BYTES
_POISON = 0xA5A5A5A5


class RankGpu:
    """One GPU with every kernel loaded.

    Parameters
    ----------
    local_rank : int
        Rank within the node; ranks are dealt to the GPUs that this process can see.
    """

    def __init__(self, local_rank: int) -> None:
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
        import cupy
        from cupy.cuda import runtime

        from xstage_bench.device.cuda.worker import Source

        self._cupy, self._runtime = cupy, runtime
        self.index = local_rank % runtime.getDeviceCount()
        self._source: Any = Source(self.index)
        facts = self._source.facts()
        self.name, self.uuid = str(facts["name"]), str(facts["uuid"])
        self.smids = [int(s) for s in facts["smids"]]
        self.sm_clock_mhz = float(facts["sm_clock_mhz"])

    def window(self) -> int:
        """Address of this process's own plain window."""
        return int(self._source.window())

    def launch(self, batch: layout.Batch, address: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Execute a batch into the window at `address`; its stamps and verdicts."""
        arrays = {"items": batch.items, "bursts": batch.bursts, "producer_of": batch.producer_of}
        longest_s = max(layout.duration_s(e.schedule, self.sm_clock_mhz) for e in batch.executions)
        self._source.launch(0, address, arrays, batch.stamps, longest_s, False)
        stamps, verdicts, _ = self._source.collect(0, batch.stamps)
        return stamps, verdicts

    def poison(self, address: int) -> None:
        """Fill this GPU's own window, and wait."""
        self._runtime.setDevice(self.index)
        self._source.poison(self._grid(), (256,), (np.uint64(address), np.uint64(WINDOW_BYTES // 16), np.uint32(_POISON)))
        self._runtime.deviceSynchronize()

    def check(self, address: int, burst: dict[str, int]) -> dict[str, int]:
        """Check every byte of this GPU's own window after one burst (``producers``, ``warps``, ``stores``, ``tag``) into poison."""
        self._runtime.setDevice(self.index)
        finding = self._cupy.zeros(layout.FINDING.itemsize, dtype=self._cupy.uint8)
        shape = (layout.WINDOW_BYTES, burst["producers"], burst["warps"], burst["stores"], burst["tag"], _POISON)
        arguments = (np.uint64(address), np.uint64(WINDOW_BYTES // 16), *(np.uint32(v) for v in shape), finding)
        self._source.check(self._grid(), (256,), arguments)
        found = finding.get().view(layout.FINDING)[0]
        return {name: int(found[name]) for name in layout.FINDING.names or ()}

    def _grid(self) -> tuple[int]:
        return (len(self.smids) * 4,)
