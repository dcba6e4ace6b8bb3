"""What ``plan`` says of memory and kernels is what the cuda device takes."""

import pytest

from xstage_bench.device.backend import BackendChoice
from xstage_bench.device.cuda import layout
from xstage_bench.device.sim import SimDevice
from xstage_bench.measure.plan import DEVICE_BYTES, Options, make_plan
from xstage_bench.measure.planned import summary as summary_of


def test_memory_and_kernels() -> None:
    sizes = (
        layout.CONTROL.itemsize,
        (layout.MAX_ITEMS + 1) * layout.VERDICT.itemsize,
        layout.MAX_ITEMS * layout.ITEM.itemsize,
        layout.MAX_BURSTS * layout.BURST.itemsize,
        layout.MAX_SETS * layout.MAX_PRODUCERS * 2,
        layout.MAX_STAMPS * layout.STAMP.itemsize,
    )
    window, lines = layout.MAX_PRODUCERS * layout.WINDOW_BYTES, 132 * 16 * layout.TIMELINE_STORES * 4
    assert pytest.approx(window + 2 * sum(sizes) + lines, rel=0.01) == DEVICE_BYTES
    node = SimDevice().node()
    options = Options(BackendChoice("cuda", "test", False), only=("isolated",), quick=True)
    summary = summary_of(SimDevice(), make_plan(node, options), options)
    assert summary["device_bytes_per_gpu"] == DEVICE_BYTES
    assert summary["kernels"] == ["st.v4, contiguous, fence.sys", "st.v4, contiguous, fence.sys, stamping every store"]
    options = Options(BackendChoice("sim:x", "test", True), only=("timer",), quick=True)
    assert summary_of(SimDevice(), make_plan(node, options), options)["device_bytes_per_gpu"] is None
