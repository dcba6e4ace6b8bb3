"""Every exported format loads with a strict parser of its own and carries the model's numbers."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import h200
import pytest

from xstage_bench.cli import run
from xstage_bench.errors import DataError, UsageError
from xstage_bench.io.json_file import write_json
from xstage_bench.model.document import load_model
from xstage_bench.show.export import WRITERS, export_model, table_of
from xstage_bench.show.export.document import ExportedModel, exported_model

RUN = h200.RUN


@pytest.fixture(scope="module")
def exported() -> ExportedModel:
    return exported_model(RUN)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def without_null(value: object) -> object:
    if isinstance(value, dict):
        return {k: without_null(v) for k, v in value.items() if v is not None}
    return [without_null(v) for v in value] if isinstance(value, list) else value


def test_the_run_folder_adds_where_the_numbers_come_from(exported: ExportedModel) -> None:
    p = exported.provenance
    assert (p.backend, p.simulated, p.driver, p.gpu) == ("cuda", False, "580.159.04", "NVIDIA H200")
    assert len(p.gpu_uuids) == 2
    assert p.measured == "2026-11-29T19:07:46Z"
    bare = exported_model(RUN / "model.json")
    assert (bare.provenance.driver, bare.provenance.measured, bare.provenance.gpu_uuids) == (None, None, [])
    assert bare.stages == exported.stages
    assert bare.provenance.model == p.model


def test_shares_of_the_sms_follow_from_the_map(exported: ExportedModel) -> None:
    """24 units share the link, 18 with six SMs and 6 with four: 132/(24 x 6) and 132/(24 x 4) of the mean, which is 1."""
    assert [s.pair for s in exported.sm_share] == ["0>1", "1>0"]
    share = exported.sm_share[0].share
    assert sorted(set(share)) == [pytest.approx(132 / 144), pytest.approx(132 / 96)]
    assert sum(share) / len(share) == pytest.approx(1)


def test_toml_is_json_without_its_nulls(exported: ExportedModel) -> None:
    from_json = json.loads(export_model(exported, "json"), parse_constant=refuse)
    assert tomllib.loads(export_model(exported, "toml")) == without_null(from_json)
    missing = [s for s in from_json["stages"] if s["capacity_bytes"]["value"] is None]
    assert missing
    assert all(s["capacity_bytes"]["status"] == "not_identified" and s["capacity_bytes"]["reason"] for s in missing)


@pytest.mark.parametrize("name", ['a"b\\c', "tab\there", "line\nend", "del\x7f", "quark ü 漢", "*/ #if 0", "??/\n"])
def test_a_strange_name_stays_a_name(exported: ExportedModel, name: str, tmp_path: Path) -> None:
    strange = replace(exported, provenance=replace(exported.provenance, source=name, gpu=name))
    assert tomllib.loads(export_model(strange, "toml"))["provenance"]["gpu"] == name
    assert next(csv.DictReader(io.StringIO(export_model(strange, "csv"), newline="")))["gpu"] == name
    assert json.loads(export_model(strange, "json"))["provenance"]["source"] == name
    head = export_model(strange, "cuh").split("#ifndef", 1)[0]
    assert all(line.startswith("//") or not line for line in head.split("\n"))
    assert not re.search(r"\\$", head, re.M)
    assert families(export_model(strange, "openmetrics"))["xstage_model_info"][0][1]["gpu"] == name


def test_csv_has_a_row_for_each_number(exported: ExportedModel) -> None:
    rows = list(csv.DictReader(io.StringIO(export_model(exported, "csv"))))
    assert len(rows) == 3 * len(exported.stages)
    for row, stage in zip(rows[1::3], exported.stages, strict=True):
        assert (row["pair"], int(row["producers"]), row["number"]) == (stage.pair, stage.producers, "drain_gb_per_s")
        value = stage.drain_gb_per_s.value
        assert row["value"] == ("" if value is None else repr(value))
        assert "nan" not in row.values()


def families(text: str) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    """Parse metrics strictly with Prometheus' own client, as both formats, which must agree."""
    openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    plain = pytest.importorskip("prometheus_client.parser")
    found = [
        {f.name: [(s.name, s.labels, s.value) for s in f.samples] for f in parser.text_string_to_metric_families(text)}
        for parser in (openmetrics, plain)
    ]
    assert found[0] == found[1]
    return found[0]


def test_metrics_are_what_both_parsers_read(exported: ExportedModel) -> None:
    text = export_model(exported, "openmetrics")
    found = families(text)
    assert len(found) == 10
    for samples in found.values():
        assert all(name in found for name, _, _ in samples)
    assert {kind for line in text.split("\n") if line.startswith("# TYPE") for kind in [line.split()[3]]} == {"gauge"}
    drain = {(s["pair"], s["warps"]): v for _, s, v in found["xstage_drain_bytes_per_second"]}
    low = {(s["pair"], s["warps"]): v for _, s, v in found["xstage_drain_low_bytes_per_second"]}
    assert drain["0>1", "4"] == pytest.approx(369.5e9, rel=1e-3)
    assert all(low[key] < value for key, value in drain.items())
    assert {s["producers"] for _, s, _ in found["xstage_capacity_bytes"]} == {"132"}
    assert found["xstage_issue_time_seconds"][0][2] < 1e-5


def test_metrics_keep_to_the_grammar_of_the_textfile_collector(exported: ExportedModel) -> None:
    """No client needed: names, labels and numbers as the text format has them, no timestamp, each family in one block."""
    lines = export_model(exported, "openmetrics").split("\n")
    assert lines[-2:] == ["# EOF", ""]
    sample = re.compile(r'([a-z_]+)\{([a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+\} -?[0-9.]+(e[-+]?[0-9]+)?')
    blocks = [m.group(1) for line in lines[:-2] if not line.startswith("#") for m in [sample.fullmatch(line)] if m]
    assert len(blocks) == sum(not line.startswith("#") for line in lines[:-2])
    order = list(dict.fromkeys(blocks))
    assert blocks == sorted(blocks, key=order.index)
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == order


def test_a_number_that_is_not_identified_has_no_sample(exported: ExportedModel) -> None:
    one = [s for s in exported.stages if s.pair == "0>1" and s.producers == 1 and s.warps == 1]
    found = families(export_model(replace(exported, stages=one), "openmetrics"))
    assert "xstage_issue_time_seconds" in found
    assert "xstage_capacity_bytes" not in found


def test_which_table_is_meant(tmp_path: Path) -> None:
    file = RUN / "model.json"
    assert [table_of(RUN, fmt) for fmt in ("json", "csv", "cuh", "toml", "openmetrics")] == ["samples"] * 2 + ["model"] * 3
    assert {table_of(file, fmt) for fmt in WRITERS} == {"model"}
    assert table_of(RUN, "json", "model") == "model"
    with pytest.raises(UsageError, match="the table producers has no format 'toml'"):
        table_of(RUN, "toml", "producers")
    with pytest.raises(UsageError, match=r"model\.json is a file and has no table samples"):
        table_of(file, "json", "samples")
    with pytest.raises(UsageError, match="unknown format 'xml'"):
        export_model(exported_model(file), "xml")


def test_a_stage_of_ones_own_is_added(exported: ExportedModel) -> None:
    own = exported_model(RUN, (100, 3))
    assert len(own.stages) == len(exported.stages) + 4
    added = [s for s in own.stages if s not in exported.stages]
    assert {(s.producers, s.warps) for s in added} == {(100, 3)}
    assert [s.pair for s in added] == ["0>0", "0>1", "1>0", "1>1"]
    assert all("interpolated; the interval is that of" in (s.t0_cycles.reason or "") for s in added)
    assert [s.pair for s in own.stages] == sorted(s.pair for s in own.stages)
    assert export_model(own, "cuh").count("{100, 3, 512") == 4
    assert exported_model(RUN, (132, 4)).stages == exported.stages


def test_a_model_in_which_nothing_was_identified_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "model.json", replace(load_model(RUN / "model.json"), pairs=[]))
    with pytest.raises(DataError, match="no issue time was identified"):
        exported_model(tmp_path / "model.json")


def test_the_verb(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(RUN), "--format", "toml"]) == 0
    assert tomllib.loads(capfd.readouterr().out)["provenance"]["driver"] == "580.159.04"
    assert run(["export", str(RUN / "model.json"), "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["stages"]) == 124
    assert run(["export", str(RUN), "--format", "openmetrics", "--out", str(tmp_path / "x.prom"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["table"] == "model"
    assert (tmp_path / "x.prom").read_text().endswith("# EOF\n")
    before = (RUN / "model.json").read_bytes()
    assert run(["export", str(RUN), "--table", "model", "--out", str(RUN / "model.json")]) == 2
    assert "never overwritten" in capfd.readouterr().err
    assert (RUN / "model.json").read_bytes() == before
    assert run(["export", str(RUN), "--format", "cuh", "--producers", "7"]) == 2
    assert "together" in capfd.readouterr().err
    assert run(["export", str(RUN), "--format", "cuh", "--json"]) == 2
    assert "exclude each other" in json.loads(capfd.readouterr().out)["error"]
