"""The family of tiny bursts behind a full stage: what it asks for, that no fit sees it, and that it is scored on its own."""

import numpy as np
import pandas as pd
import pytest
from gate_world import World, heldout, model_of, record

from xstage_bench.device.backend import BackendChoice
from xstage_bench.measure.plan import Options, chosen_probes
from xstage_bench.measure.probe import load_probes
from xstage_bench.model.cells import HOLDOUT, TINY, asked_rows
from xstage_bench.model.run_fit import usable_samples
from xstage_bench.model.validate import TINY_STORES, validate
from xstage_bench.record.reader import load_run


def test_a_large_burst_fills_the_stage_and_tiny_ones_follow_at_all_gaps():
    schedules = [s for seed in range(8) for s in heldout(World(seed=seed), TINY)]
    assert {s.start for s in schedules} == {"free", "timed"}
    assert {s.warps for s in schedules} == set(range(1, 17))
    for s in schedules:
        stores = s.stores_per_warp()
        assert stores[0] > TINY_STORES
        assert s.bursts[0].bytes >= 24_000, "more than an SM may have outstanding"
        assert set(stores[1:]) <= {1, 2}
    producers = [s.producer_count for s in schedules]
    assert (min(producers) < 12, max(producers) > 120) == (True, True)
    gaps = np.array([b.gap_cycles for s in schedules if s.start == "free" for b in s.bursts[1:]])
    assert (gaps < 100).mean() == pytest.approx(np.log(100) / np.log(100_001), abs=0.06), "log-uniform from nothing on"
    assert (gaps.max() > 80_000, gaps.max() <= 100_000, gaps.min() == 0) == (True, True, True)


def test_it_is_in_the_default_run_and_held_out_of_every_fit():
    assert TINY in {p.name for p in chosen_probes(Options(BackendChoice("sim:x", "test", True)))}
    assert TINY in HOLDOUT
    assert {p.name for p in load_probes().values() if p.holdout} >= set(HOLDOUT)
    same = {"kind": "measure", "producer_set": "even", "schedule": "s", "process": 0, "repetition": 0, "burst": 0}
    rows = pd.DataFrame({"probe": ["isolated", *HOLDOUT], **same})
    assert asked_rows(rows)["probe"].tolist() == ["isolated"]


def test_it_is_scored_beside_the_headline_and_does_not_move_it(tmp_path):
    model = model_of(World())
    both = validate(model, usable_samples(load_run(record(World(seed=9), tmp_path / "both"))))
    alone = validate(model, usable_samples(load_run(record(World(seed=9, probes=("holdout",)), tmp_path / "one"))))
    assert [(m.model, m.issue_time, m.n_bursts) for m in both.models] == [(m.model, m.issue_time, m.n_bursts) for m in alone.models]
    assert {(m.family, m.model) for m in both.families} == {(f, m) for f in ("holdout", TINY) for m in ("node", "burst_gap")}
    tiny = next(m for m in both.families if m.family == TINY)
    small = sum(int((s.stores_per_warp() <= TINY_STORES).sum()) for s in heldout(World(seed=9), TINY))
    assert tiny.n_bursts == small, "the large bursts only fill the stage"
    only = validate(model, usable_samples(load_run(record(World(seed=9, probes=(TINY,)), tmp_path / "tiny"))))
    assert only.models == []
    assert [m.family for m in only.families] == [TINY, TINY]
    assert any("measure the probe holdout" in note for note in only.notes)
