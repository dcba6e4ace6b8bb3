"""The example of docs/own-kernel.md on real GPUs: its stamps describe what it does, and the recorded model judges it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import h200
import numpy as np
import pytest

import xstage_bench
from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.measure.stamps.record import read_traces

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parent.parent.parent


def test_the_example_of_the_page(device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sms = device.node().gpus[0].sm_count
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "own-kernel.md").read_text(), re.S)
    assert code is not None
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    done = subprocess.run([sys.executable, "-c", code.group(1)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    traces = read_traces(sorted(tmp_path.glob("tiles-*.bin")))
    assert len(traces) == 6
    schedule = traces[0].schedule
    assert (schedule.producer_count, schedule.warps, len(schedule.bursts)) == (sms, 4, 18)
    assert {b.bytes for b in schedule.bursts} == {32768}
    for trace in traces:
        assert (
            trace.issue_cycles.min() > 800
        )  # 64 warp-stores leave an SM one every 16 cycles: a stamp that ends sooner has not waited for them
        assert 1000 < trace.sm_clock_mhz < 2500
    found = xstage_bench.predict(xstage_bench.load_model(h200.RUN), schedule)
    measured = np.median([t.end_ns[-1].mean() for t in traces])
    assert abs(found.total_ns - measured) / measured < 0.1
