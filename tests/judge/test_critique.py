"""`check RUN`: each way in which a run can be worth less than it seems is found, and a sound run is left alone."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from xstage_bench.device.backend import BackendChoice
from xstage_bench.io.identity import kernel_of
from xstage_bench.judge.check import criticise
from xstage_bench.measure.bursts import record_run
from xstage_bench.measure.plan import Options
from xstage_bench.model.document import Model
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.run_fit import fit_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model]:
    options = Options(BackendChoice("sim:h200-nv18-x2", "test", True), pairs=((0, 1),), only=("isolated", "periodic"), quick=True)
    run = record_run(options, tmp_path_factory.mktemp("critique") / "run", ["xstage", "run"])
    return run, fit_run(run, resamples=20)


def with_samples(run: Any, samples: pd.DataFrame, **change: Any) -> Any:
    manifest = dataclasses.replace(run.manifest, **change)
    return SimpleNamespace(folder=run.folder, manifest=manifest, samples=lambda: samples, changed=list)


def bad(run: Any, model: Model | None) -> dict[str, Any]:
    """Findings that are not ok, by check; each says what to do."""
    found = {f.check: f for f in criticise(run, model) if f.status != "ok"}
    assert all(f.hint for f in found.values()), found
    return found


def test_a_sound_run_is_left_alone(sound: tuple[Any, Model]) -> None:
    assert bad(*sound) == {}
    assert set(bad(sound[0], None)) == {"model"}
    assert any("SIMULATED" in f.detail for f in criticise(*sound))


def test_it_says_which_kernels_measured_and_whether_they_are_those_here(sound: tuple[Any, Model]) -> None:
    run, model = sound
    mine = [kernel_of("burst.cu", "sm_90", {"XSTAGE_TIMELINE": n}) for n in "12"]
    other = dataclasses.replace(kernel_of("verify.cu", "sm_90"), identity="00")

    def said(**change: Any) -> list[Any]:
        return [f for f in criticise(with_samples(run, run.samples(), **change), model) if f.check == "kernels"]

    (found,) = said(kernels=[*mine, other])
    assert found.status == "ok"
    assert f"burst.cu {mine[0].identity[:8]} and 1 more variants (sm_90, {mine[0].compiler}); verify.cu 00 (" in found.detail
    assert found.detail.endswith("not the source of this installation")
    assert "not the source" not in said(kernels=mine)[0].detail
    assert "unknown" in said(simulated=False)[0].detail
    assert said() == []  # nothing was compiled for a simulated run


def with_rate(model: Model, by: float, pair: str = "0>1") -> Model:
    """The model with another rate of one pair; a pair that it lacks is made of the first."""
    first = next(p for p in model.pairs if not p.is_local)
    drain = [dataclasses.replace(d, makespan=d.makespan.scaled(by)) for d in first.drain]
    entries = [dataclasses.replace(e, drain_gb_per_s=e.drain_gb_per_s.scaled(by)) for e in first.burst_gap]
    others = [p for p in model.pairs if p.pair != pair]
    return dataclasses.replace(model, pairs=[*others, dataclasses.replace(first, pair=pair, drain=drain, burst_gap=entries)])


@pytest.mark.parametrize(
    ("by", "pair", "check", "status", "words"),
    [
        (3.0, "0>1", "pair 0>1 rate", "fail", "of the line rate of 478.1 GB/s: no link carries that"),
        (1.5, "0>1", "pair 0>1 rate", "fail", "no link carries that"),
        (0.6, "0>1", "pair 0>1 rate", "warn", "far too low"),
        (1e-9, "0>1", "pair 0>1 rate", "fail", "far too low"),
        (0.6, "1>0", "pair 0>1 directions", "warn", "the slower has 60 % of the faster"),
        (1.2, "1>0", "pair 0>1 directions", "warn", "one way and"),
    ],
)
def test_a_rate_that_cannot_be_or_should_not_be_is_named(
    sound: tuple[Any, Model], by: float, pair: str, check: str, status: str, words: str
) -> None:
    found = bad(sound[0], with_rate(sound[1], by, pair))
    assert found[check].status == status
    assert words in found[check].detail
    assert not any(name.startswith("pair 0>1 rate") for name in bad(sound[0], with_rate(sound[1], 0.98, "1>0")))


def links(up: int, of: int = 18, unread: int = 0) -> dict[str, Any]:
    states = [True] * up + [None] * unread + [False] * (of - up - unread)
    return {"gpus": [{"index": 0, "uuid": "GPU-0", "links": [{"link": i, "active": a} for i, a in enumerate(states)]}]}


COUNTED = {"replay": 0, "recovery": 0, "crc": 0, "bytes_sent": 1, "links": {}}


@pytest.mark.parametrize(
    ("before", "after", "deltas", "expected"),
    [
        (links(18), links(18), {"GPU-0": COUNTED}, {}),
        (links(12), links(12), {"GPU-0": COUNTED}, {"GPU 0 links": "12 of 18 links were up"}),
        (links(18), links(17), {"GPU-0": COUNTED}, {"GPU 0 links": "17 of 18 links were up"}),
        (links(16, unread=2), links(18), {"GPU-0": COUNTED}, {"GPU 0 links": "2 could not be read"}),
        (links(18), links(18), None, {"GPU 0 link errors": "(replay, recovery, crc)"}),
        (links(18), links(18), {"GPU-0": COUNTED | {"replay": None, "recovery": None, "crc": None}}, {"GPU 0 link errors": "could not be"}),
        (links(18), links(18), {"GPU-0": COUNTED | {"crc": None}}, {}),
        (links(0), links(0), None, {}),
        (None, None, None, {"links": "not recorded"}),
    ],
)
def test_links_that_are_down_or_unread_are_named(sound: tuple[Any, Model], before: Any, after: Any, deltas: Any, expected: Any) -> None:
    run, model = sound
    gpus = (dataclasses.replace(run.manifest.node.gpus[0], uuid="GPU-0"), *run.manifest.node.gpus[1:])
    gpus = (gpus[0], *(dataclasses.replace(g, uuid="GPU-1") for g in gpus[1:]))
    changes = {"environment_before": before, "environment_after": after, "link_error_deltas": deltas, "simulated": False}
    found = bad(with_samples(run, run.samples(), node=dataclasses.replace(run.manifest.node, gpus=gpus), **changes), model)
    assert set(found) == set(expected)
    for check, words in expected.items():
        assert words in found[check].detail


def test_what_is_not_in_the_model_or_not_a_number_is_counted(sound: tuple[Any, Model]) -> None:
    run, model = sound
    assert "not in the model" in bad(run, dataclasses.replace(model, pairs=[]))["pair 0>1 fit"].detail
    samples = run.samples()
    some = np.arange(len(samples)) % 3 == 0
    holes = bad(with_samples(run, samples.assign(issue_mean_cycles=samples["issue_mean_cycles"].mask(some))), model)
    assert "ok, without a number" in holes["pair 0>1 samples"].detail
    assert not any("nan" in f.detail for f in holes.values())
    cut = samples.assign(status=np.where(some, "impossible", samples["status"]), detail=np.where(some, "it is infinite", None))
    assert "x it is infinite" in bad(with_samples(run, cut), model)["impossible numbers"].detail


def scaled(s: pd.DataFrame, rows: Any, by: Any) -> pd.DataFrame:
    """Issue times of these rows, multiplied."""
    return s.assign(issue_mean_cycles=s["issue_mean_cycles"] * np.where(rows, by, 1.0))


def throttled(s: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return s.assign(status=np.where(rng.random(len(s)) < 0.1, "throttled", s["status"]))


def silent(s: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return s.assign(gap_cycles=s["gap_cycles"].where(s["probe"] != "periodic", 60e6 * 1.98))


def drift(s: pd.DataFrame, by: float) -> pd.DataFrame:
    return scaled(s, s["kind"] == "sentinel", 1 + by * s.groupby("process")["order"].rank(pct=True))


@pytest.mark.parametrize(
    ("damage", "check", "status", "words"),
    [
        (lambda s, rng: scaled(s, True, np.exp(0.08 * rng.standard_normal(len(s)))), "spread within a process", "warn", "differ by"),
        (lambda s, rng: drift(s, 0.03), "drift", "warn", "+2."),
        (lambda s, rng: drift(s, -0.2), "drift", "fail", "-1"),
        (lambda s, rng: s.assign(sm_clock_mhz=s["sm_clock_mhz"] * rng.uniform(0.95, 1.0, len(s))), "SM clock", "warn", "apart by"),
        (throttled, "pair 0>1 samples", "warn", "throttled"),
        (lambda s, rng: s.assign(status="throttled"), "pair 0>1 samples", "fail", "no valid one of"),
        (silent, "link sleep", "warn", "a gap of 60 ms"),
        (lambda s, rng: s.assign(process=0), "repetitions", "warn", "1 process"),
        (lambda s, rng: s[(s["kind"] != "measure") | (s["repetition"] % 3 == 0)], "repetitions", "warn", "too few samples"),
        (lambda s, rng: s.iloc[:0], "samples", "fail", ""),
    ],
)
def test_what_spoils_a_run_is_named(sound: tuple[Any, Model], damage: Any, check: str, status: str, words: str) -> None:
    run, model = sound
    found = bad(with_samples(run, damage(run.samples(), np.random.default_rng(1))), model)
    assert check in found, found
    assert found[check].status == status
    assert words in found[check].detail


def test_the_record_itself_is_read(sound: tuple[Any, Model]) -> None:
    run, model = sound
    deltas = {"GPU-1": {"replay": 3, "recovery": 0, "crc": None, "links": {"4": {"replay": 3}}}}
    hot = {"gpus": [{"index": 0, "clock_event_reasons": ["gpu_idle", "hw_thermal_slowdown"]}]}
    changed = with_samples(
        run, run.samples(), complete=False, failed_pairs={"1>0": "lost"}, link_error_deltas=deltas, environment_after=hot
    )
    found = bad(changed, model)
    assert {k: f.status for k, f in found.items()} == {
        "complete": "warn", "pair 1>0": "fail", "link errors": "warn", "GPU 0 clocks": "warn",
    }  # fmt: skip
    assert "3 replay during the run, links 4" in found["link errors"].detail


def test_numbers_without_or_with_wide_intervals_are_named(sound: tuple[Any, Model]) -> None:
    run, model = sound
    pair = next(p for p in model.pairs if not p.is_local)
    wide = Estimate(value=100.0, standard_error=5.0, low=85.0, high=115.0)
    entries = [
        dataclasses.replace(e, capacity_bytes=Estimate.missing("the sweep never saturates"), drain_gb_per_s=wide) for e in pair.burst_gap
    ]
    found = bad(run, dataclasses.replace(model, pairs=[dataclasses.replace(pair, burst_gap=entries)]))
    assert set(found) == {"pair 0>1 Q", "pair 0>1 R"}
    assert "never saturates" in found["pair 0>1 Q"].detail
    assert "+-15.00 %" in found["pair 0>1 R"].detail
    assert "too few samples" in (found["pair 0>1 R"].hint or "")
