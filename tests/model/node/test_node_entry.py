"""From a run's tables to a stored entry and back."""

import msgspec
import numpy as np
import pandas as pd
import pytest
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
    rows = []
    for i, s in enumerate(schedules):
        for b, burst in enumerate(s.bursts):
            at = int(data.first[i]) + b
            for process in range(3):
                rows.append(
                    {
                        "schedule": s.key(),
                        "probe": probe or data.probes[i],
                        "kind": "measure",
                        "source": 0,
                        "destination": 1,
                        "flavour": "st.v4",
                        "layout": "contiguous",
                        "start": s.start,
                        "producers": s.producer_count,
                        "producer_set": s.producer_set,
                        "warps": s.warps,
                        "burst": b,
                        "bursts": len(s.bursts),
                        "bytes": burst.bytes,
                        "gap_cycles": burst.gap_cycles if s.start == "free" and b else None,
                        "start_ns": burst.start_ns if s.start == "timed" else None,
                        "process": process,
                        "repetition": process,
                        "issue_mean_cycles": data.by_process[process, at],
                        "issue_max_cycles": data.by_process[process, at],
                        "start_mean_ns": data.start_ns[at],
                        "sm_clock_mhz": 1980.0,
                        "status": "ok",
                    }
                )
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def samples() -> pd.DataFrame:
    return _rows(SCHEDULES)


@pytest.fixture(scope="module")
def producers() -> pd.DataFrame:
    return pd.DataFrame({"schedule": pd.Series(dtype=str), "smid": pd.Series(dtype=int), "issue_cycles": pd.Series(dtype=float)})


@pytest.fixture(scope="module")
def entry(samples: pd.DataFrame, producers: pd.DataFrame) -> NodeEntry:
    return calibrate_node(samples, producers, 0, 1, SMS)


def test_tables_become_medians_by_schedule_burst_and_process(samples: pd.DataFrame) -> None:
    found = measured(samples, 0, 1, ("isolated",))
    assert set(found.probes) == {"isolated"}
    assert found.by_process.shape == (3, int(found.first[-1]))
    assert found.issue_cycles == pytest.approx(np.median(found.by_process, axis=0))
    assert len(measured(samples, 1, 0, None).keys) == 0


def test_rows_that_are_not_valid_do_not_count(samples: pd.DataFrame) -> None:
    spoiled = pd.concat(
        [samples, samples.assign(status="throttled", issue_mean_cycles=1e9), samples.assign(kind="warmup", issue_mean_cycles=1e9)]
    )
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


def test_held_out_probes_change_nothing(samples: pd.DataFrame, producers: pd.DataFrame, entry: NodeEntry) -> None:
    poison = _rows(SCHEDULES[:5], probe="holdout").assign(issue_mean_cycles=1e9)
    both = pd.concat([samples[~samples["schedule"].isin(poison["schedule"])], poison])
    without = samples[~samples["schedule"].isin(poison["schedule"])]
    assert calibrate_node(both, producers, 0, 1, SMS, limit=20).used == calibrate_node(without, producers, 0, 1, SMS, limit=20).used


def test_a_broken_entry_is_named(entry: NodeEntry) -> None:
    broken = msgspec.json.decode(msgspec.json.encode(entry), type=NodeEntry)
    broken.used["credit_cycles"] = -1.0
    with pytest.raises(DataError, match="credit_cycles"):
        model_of(broken)


def test_too_few_schedules_are_refused(samples: pd.DataFrame, producers: pd.DataFrame) -> None:
    few = samples[samples["schedule"].isin(samples["schedule"].unique()[:3])]
    with pytest.raises(DataError, match="measure them"):
        calibrate_node(few, producers, 0, 1, SMS)
