"""Bars of before that the recordings of 2026-11-30 miss: each is held as it was, and expected to fail until it is met again.

`test_findings` and `test_findings_fused` hold what the recordings do show; nothing here is loosened. A bar that passes fails this file: it
goes back where it was.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onsets import onset_readings
from recordings import PATHS, document
from test_findings import queue_rows, registered_map, seen

from xstage_bench.measure.replay_document import read_replay
from xstage_bench.model.document import ModelScore, load_validation
from xstage_bench.model.node.data import measured
from xstage_bench.model.node.entry import model_of
from xstage_bench.model.node.infer import infer_placement
from xstage_bench.model.node.placement import adjusted_rand_index
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.run_fit import find_model
from xstage_bench.record.reader import load_run


def replayed(topic: str) -> np.ndarray:
    """Relative errors of the total times of one replay."""
    rows = read_replay(PATHS["replay"].parent / topic / "replay.json.gz")["rows"]
    return np.array([abs(row["predicted_us"] / row["total_us"]["value"] - 1) for row in rows if row.get("predicted_us")])


def flavours() -> list[ModelScore]:
    return [s for s in load_validation(PATHS["flavours"] / "validation.json.gz").models if s.model == "node"]


def paid_back(row: dict) -> float:
    """What 8 000 cycles of lag save of the cost of publishing."""
    cost = dict(zip(row["lag_cycles"], (s["median"] for s in row["publish_cycles"]), strict=True))
    return cost[0] - cost[8_000]


def after_the_stores() -> float:
    """Cycles that one SM's stores of 16 a warp are still outstanding after the last was issued."""
    rows = queue_rows(1, 16)
    return rows["nothing"]["fenced_cycles"] - max(row["stored_cycles"] for row in rows.values())


def recoveries() -> float:
    """Recovery gaps that could be read in the direction 0>1."""
    run = load_run(PATHS["profile"])
    entry = entry_of(next(p for p in find_model(run.folder).pairs if p.pair == "0>1"))
    assert entry is not None
    found = onset_readings(model_of(entry), measured(run.samples(), 0, 1, ["onset"]))
    return float(sum(f.what == "recovery" and f.measured is not None for f in found))


def agreement() -> float:
    """Of the map of GPU 0 with that of the dies of the day before."""
    run = load_run(PATHS["profile"])
    return adjusted_rand_index(infer_placement(run.samples(), run.producers(), 0).unit_of(np.arange(132)), registered_map())


#: What is measured, the bar, and whether more is better.
BARS: dict[str, tuple[Callable[[], float], float, bool]] = {
    "recovery gaps that could be read (4)": (recoveries, 5, True),
    "a map of units agrees with that of other dies (0.9 to 0.95)": (agreement, 0.95, True),
    "replay of workloads, p95 of the total (7.2 %)": (lambda: float(np.quantile(replayed("workloads"), 0.95)), 0.06, False),
    "replay of skeletons, largest error (15.0 %)": (lambda: float(replayed("skeleton-block-spin").max()), 0.13, False),
    "flavours, median of a burst (tensor.16384: 6.1 %)": (lambda: max(s.issue_time.median_error or 1 for s in flavours()), 0.05, False),
    "flavours, median of the time line (2.002 %)": (lambda: max(s.total_time.median_error or 1 for s in flavours()), 0.02, False),
    "store queue, cycles outstanding after the stores (582)": (after_the_stores, 600, True),
    "a plain flag overtakes the backlog, cycles (0>1: 7 382)": (
        lambda: max(r["round_trip_cycles"]["median"] for r in seen("flag", "0>1", method="relaxed", producers=130)), 6_000, False,
    ),
    "a system release is paid back by lag, of 8 000 cycles (5 050)": (
        lambda: min(paid_back(r) for r in seen("lag", "0>1", method="release.sys", bytes=64 << 10)), 6_800, True,
    ),
}  # fmt: skip


@pytest.mark.xfail(strict=True, reason="missed by the recordings of 2026-11-30")
@pytest.mark.parametrize("name", list(BARS))
def test_a_missed_bar(name: str) -> None:
    value, bar, more = BARS[name]
    assert value() >= bar if more else value() <= bar


def test_the_recordings_are_there() -> None:
    """What fails above fails by its number, not because nothing could be read."""
    assert all(np.isfinite(value()) for value, _, _ in BARS.values())
    assert document("visibility", "visibility.json.gz")["rows"]
