"""The variables for those who test this tool: one scale for every time-out, and planted faults by pair."""

from __future__ import annotations

import pytest

from xstage_bench.device.cuda.debug import FAULT, FAULTS, TIMEOUT_SCALE, planted, timeout_scale
from xstage_bench.errors import UsageError
from xstage_bench.machine.environment import VARIABLES


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_pair_or_in_all(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv(FAULT, f"{fault}@0>1")
    assert (planted(0, 1), planted(1, 0), planted(0, -1)) == (fault, None, None)
    monkeypatch.setenv(FAULT, fault)
    assert planted(1, 0) == fault


def test_nothing_by_default_and_both_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FAULT, raising=False)
    monkeypatch.delenv(TIMEOUT_SCALE, raising=False)
    assert (planted(0, 1), timeout_scale()) == (None, 1.0)
    assert {FAULT, TIMEOUT_SCALE} <= set(VARIABLES)
    monkeypatch.setenv(FAULT, "explode@0>1")
    with pytest.raises(UsageError, match="names no fault"):
        planted(0, 1)
    for text in ("0", "-1", "nan", "inf", "fast", ""):
        monkeypatch.setenv(TIMEOUT_SCALE, text)
        with pytest.raises(UsageError, match=TIMEOUT_SCALE):
            timeout_scale()
