"""Any value in a sound place: no verb ends in a traceback, and none says ok of a number that cannot be."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import h200
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xstage_bench.cli import run
from xstage_bench.device.backend import BackendChoice
from xstage_bench.device.replay import ReplayDevice
from xstage_bench.errors import XStageError
from xstage_bench.judge.compare import Side, compare
from xstage_bench.judge.fleet.screen import screen
from xstage_bench.measure.bursts import record_run
from xstage_bench.measure.plan import Options
from xstage_bench.model.document import load_model
from xstage_bench.record.reader import load_run
from xstage_bench.show.export import export_model
from xstage_bench.show.export.document import exported_model

NUMBERS = st.one_of(
    st.sampled_from([0.0, -1.0, 1.0, 1e-300, 1e300, -1e300, 2.0**53, float("inf"), float("-inf"), None]), st.floats(-1e9, 1e9)
)
COLUMNS = ("issue_mean_cycles", "issue_min_cycles", "issue_max_cycles", "makespan_ns", "drain_max_cycles", "start_mean_ns", "sm_clock_mhz")
ELSEWHERE = ("drain_max_cycles", "start_mean_ns")  # a fleet does not read these, so it does not judge them
#: Any of these in a row that was ok cannot be.
ALWAYS_BAD = (float("inf"), float("-inf"))
UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of isolated bursts of a few sizes, not fitted, without digests, so that a value is judged by itself."""
    folder = tmp_path_factory.mktemp("values") / "run"
    options = Options(BackendChoice("sim:h200-nv18-x2", "test", True), pairs=((0, 1),), only=("isolated",), quick=True)
    record_run(options, folder, ["xstage", "run"])
    manifest = json.loads((folder / "manifest.json").read_text()) | {"parts": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    parts = sorted((folder / "samples").iterdir())
    table = pa.concat_tables([pq.read_table(part) for part in parts])
    few = (table.column("producers").to_numpy() == 132) & (table.column("warps").to_numpy() == 4)
    for part in parts:
        part.unlink()
    pq.write_table(table.filter(pa.array(few)), parts[0])
    return folder


def put(folder: Path, column: str, value: float | None, every: int) -> int:
    """Write a value into each n-th row of status ``ok``; return how many were."""
    (part,) = (folder / "samples").iterdir()
    table = pq.read_table(part)
    index = table.column_names.index(column)
    chosen = np.flatnonzero(table.column("status").to_numpy() == "ok")[::every]
    values = table.column(column).to_pylist()
    for i in chosen:
        values[i] = value
    pq.write_table(table.set_column(index, table.schema.field(index), pa.array(values, pa.float64())), part)
    return len(chosen)


@settings(max_examples=6, deadline=None, suppress_health_check=UNHURRIED)
@given(column=st.sampled_from(COLUMNS), value=NUMBERS, every=st.sampled_from([1, 2, 7]))
def test_samples(sound: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], column: str, value: float | None, every: int) -> None:
    folder = tmp_path / "fleet" / "run"
    shutil.rmtree(tmp_path / "fleet", ignore_errors=True)
    shutil.copytree(sound, folder)
    count = put(folder, column, value, every)
    marked = int((load_run(folder).samples()["status"] == "impossible").sum())
    assert marked == count or (marked < count and value not in ALWAYS_BAD)
    fitted = run(["fit", str(folder), "--resamples", "20", "--json"])
    checked = run(["check", str(folder), "--strict", "--json"])
    fleet = screen(folder.parent)
    device = ReplayDevice(str(folder))
    replayed = list(device.measure([r.execution for r in device.executions() if not r.execution.timeline]))
    said = capfd.readouterr()
    assert "internal error" not in said.err + said.out, said.err
    assert "nan %" not in said.out
    assert "Infinity" not in said.out
    assert fitted == 0 or marked or value is None, "what can be is fitted"
    assert all(np.isfinite(t.summary()["issue_mean_cycles"]).all() for t in replayed if t.status == "ok")
    if marked:
        assert checked == 4
        assert fleet.nodes == [] or fleet.nodes[0].impossible_rows or column in ELSEWHERE


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a document that holds a number or a pair."""
    if isinstance(node, dict | list):
        return [p for k, v in (node.items() if isinstance(node, dict) else enumerate(node)) for p in places(v, (*path, k))]
    return [path] if isinstance(node, int | float) or (path and path[-1] == "pair") else []


DOCUMENT = json.loads(h200.MODEL.read_text())
DOCUMENT |= {"tasks": [], "pairs": DOCUMENT["pairs"][:1]}
for name in ("burst_gap", "drain", "plateaus", "release"):
    DOCUMENT["pairs"][0][name] = DOCUMENT["pairs"][0].get(name, [])[-2:]
DOCUMENT["pairs"][0].pop("node_basis", None)
PLACES = places(DOCUMENT)
STRANGE = st.one_of(st.sampled_from([0, -1, 1e300, -1e300, 10**25, None, "0>1>2", ">", "a>b", "1>-2", "-1>0"]), st.floats(-1e9, 1e9))


@settings(max_examples=60, deadline=None, suppress_health_check=UNHURRIED)
@given(place=st.sampled_from(PLACES), value=STRANGE)
def test_documents(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    """A model with any value anywhere is refused, or serves comparison and export without an accident."""
    document = json.loads(json.dumps(DOCUMENT))
    node = document
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    text = "{}"
    with contextlib.suppress(XStageError):
        model = load_model(path)
        compare(Side("a", model, None), Side("b", model, None))
        text = export_model(exported_model(path), "json")
    json.loads(text, parse_constant=lambda word: pytest.fail(word))


@pytest.mark.parametrize(
    ("place", "value", "key"),
    [
        (("pairs", 0, "pair"), "0>1>2", "pairs[0].pair"),
        (("pairs", 0, "pair"), "0-1", "pairs[0].pair"),
        (("pairs", 0, "burst_gap", 0, "t0_cycles", "low"), 1e9, "pairs[0].burst_gap[0].t0_cycles.low"),
        (("pairs", 0, "burst_gap", 0, "drain_gb_per_s", "value"), 1e9, "pairs[0].burst_gap[0].drain_gb_per_s.value"),
        (("pairs", 0, "burst_gap", 0, "t0_cycles", "standard_error"), -1.0, "t0_cycles.standard_error"),
        (("pairs", 0, "burst_gap", 0, "t0_cycles", "level"), 1.5, "t0_cycles.level"),
        (("pairs", 0, "burst_gap", 0, "warps"), 0, "pairs[0].burst_gap[0].warps"),
        (("pairs", 0, "burst_gap", 0, "bytes"), -512, "pairs[0].burst_gap[0].bytes"),
        (("pairs", 0, "calibrated_range", "bytes"), [9, 1], "pairs[0].calibrated_range.bytes"),
        (("sm_clock_mhz",), -1980.0, "sm_clock_mhz"),
        (("sm_clock_mhz",), 1e300, "sm_clock_mhz"),
    ],
)
def test_what_cannot_be_is_refused_by_file_key_and_value(tmp_path: Path, place: tuple[Any, ...], value: Any, key: str) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    node = document
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(XStageError) as caught:
        load_model(path)
    assert str(path) in caught.value.message
    assert key in caught.value.message
    assert repr(value if not isinstance(value, list) else tuple(value)) in caught.value.message
