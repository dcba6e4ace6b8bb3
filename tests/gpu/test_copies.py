"""The yardsticks beside R on real GPUs: right copies, at rates that the link allows."""

from __future__ import annotations

import pytest

from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.measure.copies import METHODS, copy_rates, store_rates

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("what", [*METHODS, "st.v4", "bulk.4096"])
def test_a_pair_copies_right_and_below_the_line_rate(device: CudaDevice, what: str) -> None:
    rates = copy_rates(device, 0, 1, what) if what in METHODS else store_rates(device, 0, 1, what)
    line = device.node().line_rate_gb_per_s
    assert len(rates) >= 3
    assert min(rates) > 10
    assert line is None or max(rates) < line
