"""Exported formats load with strict parsers of their own and carry the model's numbers; the header compiles everywhere and costs little."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import h200
import pytest

from xstage_bench.cli import run
from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_source
from xstage_bench.errors import DataError, UsageError
from xstage_bench.io.json_file import write_json
from xstage_bench.model.document import load_model
from xstage_bench.show.export import WRITERS, export_model, table_of
from xstage_bench.show.export.cuh import namespace
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
    assert {line.split()[3] for line in text.split("\n") if line.startswith("# TYPE")} == {"gauge"}
    assert text.endswith("\n# EOF\n")
    drain = {(s["pair"], s["warps"]): v for _, s, v in found["xstage_drain_bytes_per_second"]}
    low = {(s["pair"], s["warps"]): v for _, s, v in found["xstage_drain_low_bytes_per_second"]}
    assert drain["0>1", "4"] == pytest.approx(369.5e9, rel=1e-3)
    assert all(low[key] < value for key, value in drain.items())
    assert {s["producers"] for _, s, _ in found["xstage_capacity_bytes"]} == {"132"}
    assert found["xstage_issue_time_seconds"][0][2] < 1e-5
    one = [s for s in exported.stages if s.pair == "0>1" and s.producers == 1 and s.warps == 1]
    found = families(export_model(replace(exported, stages=one), "openmetrics"))
    assert "xstage_issue_time_seconds" in found
    assert "xstage_capacity_bytes" not in found, "what is not identified has no sample"


def test_which_table_is_meant_and_what_is_refused(tmp_path: Path) -> None:
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
    write_json(tmp_path / "model.json", replace(load_model(file), pairs=[]))
    with pytest.raises(DataError, match="no issue time was identified"):
        exported_model(tmp_path / "model.json")


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


def test_the_verb(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def export(*words: str, status: int = 0) -> tuple[str, str]:
        assert run(["export", *words]) == status
        return tuple(capfd.readouterr())

    where, file = str(RUN), str(RUN / "model.json")
    assert tomllib.loads(export(where, "--format", "toml")[0])["provenance"]["driver"] == "580.159.04"
    assert len(json.loads(export(file, "--json")[0])["stages"]) == 124
    assert json.loads(export(where, "--format", "openmetrics", "--out", str(tmp_path / "x.prom"), "--json")[0])["table"] == "model"
    assert (tmp_path / "x.prom").read_text().endswith("# EOF\n")
    before = (RUN / "model.json").read_bytes()
    assert "never overwritten" in export(where, "--table", "model", "--out", file, status=2)[1]
    assert (RUN / "model.json").read_bytes() == before
    assert "together" in export(where, "--format", "cuh", "--producers", "7", status=2)[1]
    assert "exclude each other" in json.loads(export(where, "--format", "cuh", "--json", status=2)[0])["error"]


KERNEL = """
#include "model.cuh"
namespace mine = xstage::pair_0_1_st_v4;
static constexpr xstage::Stage at_scope = mine::stage(132, 4);
static_assert(at_scope.capacity_bytes.known && at_scope.capacity_bytes.low < at_scope.capacity_bytes.high, "Q has an interval");
static_assert(xstage::would_stall(at_scope, 32768) && !xstage::would_stall(at_scope, 16384), "the knee lies at 19 kB");
static_assert(!mine::stage(1, 1).drain_gb_per_s.known, "one warp never saturates");
extern "C" __global__ void ask(float *out, float backlog, unsigned smid) {
  constexpr xstage::Stage own = mine::stage(100, 4);
  out[0] = xstage::would_stall(own, 16384.0f, backlog);
  out[1] = mine::sm_share(smid);
}
int host() { return xstage::largest_free_burst_bytes(at_scope); }
"""


@pytest.fixture(scope="module")
def header() -> str:
    return export_model(exported_model(RUN), "cuh")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvrtc_takes_it(header: str, arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    device_only = KERNEL[: KERNEL.index("int host")]
    assert compile_source(device_only, "ask.cu", arch, headers={"model.cuh": header})[:4] == b"\x7fELF"


def test_a_question_costs_a_few_instructions_and_no_memory(header: str, tmp_path: Path, sass_of) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    lines = sass_of(compile_source(KERNEL[: KERNEL.index("int host")], "ask.cu", "sm_90", headers={"model.cuh": header}), "ask")
    text = "\n".join(lines)
    assert not re.search(r"\b(LDL|STL|CALL|MUFU|FCHK)", text), "no division, no array in local memory"
    floats = [line for line in lines if re.match(r"(@!?P\d+ )?F(ADD|MUL|FMA|MNMX|SET|SETP|SEL)", line)]
    assert len(floats) <= 6


def test_nvcc_takes_it_without_a_warning(header: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    (tmp_path / "model.cuh").write_text(header)
    (tmp_path / "ask.cu").write_text(KERNEL)
    options = ["-std=c++17", "-arch=sm_90a", "-cubin", "-Werror", "all-warnings", "-o", "ask.cubin", "ask.cu"]
    done = subprocess.run(["nvcc", *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numbers_in_the_header_are_the_models(header: str) -> None:
    exported = exported_model(RUN)
    rows = re.findall(r"^    (\{\d+, .*\}),$", header, re.M)
    for row, stage in zip(rows, exported.stages, strict=True):
        words = re.sub(r"[{}]", "", row).replace("f,", ",").split(", ")
        assert [int(words[0]), int(words[1])] == [stage.producers, stage.warps]
        q, (*numbers, known) = stage.capacity_bytes, words[14:18]
        assert known == ("false" if q.value is None else "true")
        assert [float(n) for n in numbers] == pytest.approx([q.value or 0, q.low or 0, q.high or 0], rel=1e-8)


def test_where_the_numbers_come_from_is_on_top(header: str) -> None:
    head = header[: header.index("#ifndef")]
    for word in ("GPU-62166923-2abd-318d-cc07-b65c515cb05c", "580.159.04", "2026-11-29T19:07:46Z", "backend     cuda\n"):
        assert word in head
    assert "SIMULATED" not in head
    exported = exported_model(RUN)
    simulated = replace(exported, provenance=replace(exported.provenance, backend="sim:h200-nv18-x2", simulated=True))
    assert "sim:h200-nv18-x2, SIMULATED" in export_model(simulated, "cuh")


@pytest.mark.parametrize(
    ("pair", "flavour", "layout", "name"),
    [
        ("0>1", "st.v4", "contiguous", "pair_0_1_st_v4"),
        ("0>-1", "st.v4", "contiguous", "pair_0_host_st_v4"),
        ("7>0", "red.v4.f32", "rows256", "pair_7_0_red_v4_f32_rows256"),
    ],
)
def test_names_of_cpp(pair: str, flavour: str, layout: str, name: str) -> None:
    assert namespace(pair, flavour, layout) == name
