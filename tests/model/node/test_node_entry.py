"""From a run's tables to a stored entry and back."""

import msgspec
import numpy as np
import pandas as pd
import pytest
from made_rows import rows_of
from node_worlds import quick_schedules, shorter, synthesize

from xstage_bench.errors import DataError
from xstage_bench.model.node.data import measured
from xstage_bench.model.node.entry import NodeEntry, calibrate_node, model_of
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.placement import uniform
from xstage_bench.model.node.predict import predict_node
from xstage_bench.schedule.bursts import Schedule

SMS = np.arange(36)
TRUTH = NodeModel(19.0, 100.0, 25.6, 15_000.0, 13_000.0, 520.0, 50_000.0, 0.12, uniform(SMS), 1980.0)
SCHEDULES = shorter(quick_schedules(36, 0, 1, link_gb_per_s=100.0), 4)


def _rows(schedules: list[Schedule], probe: str = "") -> pd.DataFrame:
    data = synthesize(TRUTH, schedules, np.random.default_rng(5))
    parts = []
    for i, s in enumerate(schedules):
        at = slice(int(data.first[i]), int(data.first[i + 1]))
        for p in range(3):
            words = {"process": p, "repetition": p, "clock": 1980.0}
            parts.append(rows_of(s, probe or data.probes[i], data.by_process[p, at], data.start_ns[at], **words))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def samples() -> pd.DataFrame:
    return _rows(SCHEDULES)


PRODUCERS = pd.DataFrame({"schedule": pd.Series(dtype=str), "smid": pd.Series(dtype=int), "issue_cycles": pd.Series(dtype=float)})


@pytest.fixture(scope="module")
def entry(samples: pd.DataFrame) -> NodeEntry:
    return calibrate_node(samples, PRODUCERS, 0, 1, SMS)


def test_tables_become_medians_by_schedule_burst_and_process(samples: pd.DataFrame) -> None:
    found = measured(samples, 0, 1, ("isolated",))
    assert set(found.probes) == {"isolated"}
    assert found.by_process.shape == (3, int(found.first[-1]))
    assert found.issue_cycles == pytest.approx(np.median(found.by_process, axis=0))
    assert len(measured(samples, 1, 0, None).keys) == 0


def test_rows_that_are_not_valid_do_not_count(samples: pd.DataFrame) -> None:
    spoiled = pd.concat([samples, *(samples.assign(issue_mean_cycles=1e9, **bad) for bad in ({"status": "throttled"}, {"kind": "warmup"}))])
    assert measured(spoiled, 0, 1, None).issue_cycles == pytest.approx(measured(samples, 0, 1, None).issue_cycles)


def test_a_schedule_of_two_probes_counts_as_the_last_one_s(samples: pd.DataFrame) -> None:
    key = samples.loc[samples["probe"] == "isolated", "schedule"].iloc[0]
    both = pd.concat([samples, samples[samples["schedule"] == key].assign(probe="issue")], ignore_index=True)
    found = measured(both, 0, 1, None)
    assert found.probes[found.keys.index(key)] == "issue"
    assert measured(samples, 0, 1, None).probes[found.keys.index(key)] == "isolated"


def test_without_placement_the_map_is_called_a_guess(entry: NodeEntry) -> None:
    assert not entry.placement.measured
    assert any("guess" in note for note in entry.notes)
    assert entry.node["link_gb_per_s"].value == pytest.approx(100.0, rel=0.05)


def test_an_entry_survives_strict_json(entry: NodeEntry) -> None:
    again = msgspec.json.decode(msgspec.json.encode(entry), type=NodeEntry)
    assert again == entry
    first, second = (predict_node(model_of(e), SCHEDULES).issue_cycles for e in (entry, again))
    assert (first == second).all()
    again.used["credit_cycles"] = -1.0
    with pytest.raises(DataError, match="credit_cycles"):
        model_of(again)


def test_held_out_probes_change_nothing(samples: pd.DataFrame, entry: NodeEntry) -> None:
    poison = _rows(SCHEDULES[:5], probe="holdout").assign(issue_mean_cycles=1e9)
    without = samples[~samples["schedule"].isin(poison["schedule"])]
    first, second = (calibrate_node(rows, PRODUCERS, 0, 1, SMS, limit=20).used for rows in (pd.concat([without, poison]), without))
    assert first == second


def test_too_few_schedules_are_refused(samples: pd.DataFrame) -> None:
    few = samples[samples["schedule"].isin(samples["schedule"].unique()[:3])]
    with pytest.raises(DataError, match="measure them"):
        calibrate_node(few, PRODUCERS, 0, 1, SMS)
