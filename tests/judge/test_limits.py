"""Limits files: what passes, what fails, what is undetermined; a missing quantity fails; no file makes anything but our errors."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xstage_bench.errors import DataError, UsageError
from xstage_bench.judge.limits import GPU, NODE, PAIR, SCHEMA_VERSION, judge, load_limits
from xstage_bench.model.document import BurstGap, Model, PairModel
from xstage_bench.model.entry import missing_entry
from xstage_bench.model.estimate import Estimate
from xstage_bench.record.manifest import Manifest
from xstage_bench.schedule.device import Gpu, Node

UUIDS = ("GPU-a", "GPU-b")


def number(value: float, half: float = 0.0) -> Estimate:
    return Estimate(value=value, standard_error=half / 4.3, low=value - half, high=value + half)


def entry(rate: Estimate, warps: int = 4, producers: int = 132) -> BurstGap:
    none = missing_entry(producers, warps, "st.v4", "no valid samples")
    return dataclasses.replace(none, drain_gb_per_s=rate, t0_cycles=number(990.0, 2.0))


def case(rate: Estimate, **change: Any) -> tuple[Any, Model]:
    gpus = tuple(Gpu(i, "H", (0, 1), 1980.0, UUIDS[i]) for i in range(2))
    node = Node(gpus, ((0, 1), (1, 0)), 32.0, 478.0)
    facts = [{"uuid": u, "links": [{"active": i > 0 or u != "GPU-b"} for i in range(18)], "temperature_c": 40} for u in UUIDS]
    deltas = {"GPU-a": {"crc": 0, "replay": 2, "recovery": None}}
    given_ = {"environment_after": {"gpus": facts}, "link_error_deltas": deltas, **change}
    manifest = Manifest(backend="cuda", simulated=False, node=node, **given_)
    pairs = [PairModel(pair=p, flavour="st.v4", layout="contiguous", burst_gap=[entry(rate)]) for p in ("0>1", "1>0")]
    model = Model(schema_version=1, backend="cuda", gpu="H", sm_clock_mhz=1980.0, pairs=pairs)
    return SimpleNamespace(manifest=manifest), model


def results(tmp_path: Path, text: str, case_: tuple[Any, Model]) -> dict[tuple[str, str], str]:
    path = tmp_path / "limits.toml"
    path.write_text(f"schema_version = 1\n{text}")
    return {(j.subject, j.metric): j.result for j in judge(*case_, load_limits(path))}


@pytest.mark.parametrize(
    ("text", "half", "both"),
    [
        ("drain_gb_per_s = { min = 350 }", (370, 3), ("pass", "pass")),
        ("drain_gb_per_s = { min = 350 }", (352, 3), ("undetermined", "undetermined")),
        ("drain_gb_per_s = { min = 350 }", (349, 3), ("undetermined", "undetermined")),
        ("drain_gb_per_s = { min = 350 }", (340, 3), ("fail", "fail")),
        ("drain_gb_per_s = { min = 350 }", (350, 0), ("pass", "pass")),
        ("t0_ns = { min = 400, max = 600 }", (370, 3), ("pass", "pass")),
        ("drain_share_of_line_rate = { max = 0.5 }", (370, 3), ("fail", "fail")),
        ('drain_gb_per_s = { min = 350 }\n[pair."1>0"]\ndrain_gb_per_s = { min = 380 }', (370, 3), ("pass", "fail")),
    ],
)
def test_the_whole_interval_decides_of_each_pair_by_its_own_rules(
    tmp_path: Path, text: str, half: tuple[float, float], both: tuple[str, str]
) -> None:
    found = results(tmp_path, f"[pairs]\n{text}", case(number(*half)))
    metric = text.split(" ")[0]
    assert found == {("pair 0>1", metric): both[0], ("pair 1>0", metric): both[1]}


def test_counts_and_counters(tmp_path: Path) -> None:
    text = "[node]\ngpus = {min = 2}\npairs = {min = 3}\n"
    text += "[gpus]\nlinks_active = {min = 18}\ncrc_errors = {max = 0}\nreplay_errors = {max = 0}"
    found = results(tmp_path, text, case(number(370, 3)))
    bad = {("node", "pairs"), ("GPU 1", "links_active"), ("GPU 0", "replay_errors")}
    unread = {("GPU 1", "crc_errors"), ("GPU 1", "replay_errors")}  # a counter that nobody read has not been shown to be zero
    assert {key for key, result in found.items() if result != "pass"} == bad | unread
    assert (len(found), set(found.values())) == (8, {"pass", "fail"})


@pytest.mark.parametrize("metric", [*(f"pairs.{n}" for n in PAIR), *(f"gpus.{n}" for n in GPU), *(f"node.{n}" for n in NODE)])
def test_a_missing_quantity_fails(tmp_path: Path, metric: str) -> None:
    table, _, name = metric.partition(".")
    run, model = case(Estimate.missing("the sweep never saturates"), environment_after=None, link_error_deltas=None)
    node = Node((), (), 32.0) if table == "node" else dataclasses.replace(run.manifest.node, line_rate_gb_per_s=None)
    none = [
        dataclasses.replace(p, burst_gap=[dataclasses.replace(e, t0_cycles=Estimate.missing("no")) for e in p.burst_gap])
        for p in model.pairs
    ]
    bare = SimpleNamespace(manifest=dataclasses.replace(run.manifest, node=node))
    found = results(tmp_path, f"[{table}]\n{name} = {{ min = 1 }}", (bare, dataclasses.replace(model, pairs=none)))
    assert found
    assert set(found.values()) == {"fail"}


def test_a_failed_or_unmeasured_or_unusable_pair_fails(tmp_path: Path) -> None:
    run, model = case(number(370, 3), failed_pairs={"0>1": "stores are lost"})
    node = dataclasses.replace(run.manifest.node, unusable={"1>2": "no peer access"})
    run = SimpleNamespace(manifest=dataclasses.replace(run.manifest, node=node))
    text = '[pairs]\ndrain_gb_per_s = { min = 1 }\n[pair."7>8"]\ndrain_gb_per_s = { min = 1 }'
    found = results(tmp_path, text, (run, model))
    assert {k[0]: v for k, v in found.items()} == {"pair 0>1": "fail", "pair 1>0": "pass", "pair 1>2": "fail", "pair 7>8": "fail"}


def test_the_entry_can_be_chosen(tmp_path: Path) -> None:
    run, model = case(number(370, 3))
    more = [dataclasses.replace(p, burst_gap=[*p.burst_gap, entry(number(330, 3), 1, 16)]) for p in model.pairs]
    text = "producers = {}\nwarps = 1\n[pairs]\ndrain_gb_per_s = {{ min = 350 }}"
    assert set(results(tmp_path, text.format(16), (run, dataclasses.replace(model, pairs=more))).values()) == {"fail"}
    assert set(results(tmp_path, text.format(8), (run, dataclasses.replace(model, pairs=more))).values()) == {"fail"}, "not fitted"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "schema_version"),
        ("schema_version = 1", "asks for nothing"),
        ("schema_version = 2\n[pairs]\nt0_ns = {max = 1}", "schema version 2"),
        ("schema_version = 1\n[pairs]\nt0_us = {max = 1}", "knows no quantity 't0_us'"),
        ("schema_version = 1\n[pairs]\nt0_ns = {}", "neither min nor max"),
        ("schema_version = 1\n[pairs]\nt0_ns = {max = nan}", "$.pairs"),
        ("schema_version = 1\n[pairs]\nt0_ns = {max = '1'}", "$.pairs"),
        ("schema_version = 1\n[pairs]\nt0_ns = {min = -inf}", "$.pairs"),
        ("schema_version = 1\n[pairs]\nt0_ns = {most = 1}", "most"),
        ("schema_version = 1\n[links]\nt0_ns = {max = 1}", "links"),
        ("schema_version = 1\n[pairs", "end of document"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(content)
    with pytest.raises(DataError) as error:
        load_limits(path)
    assert words in str(error.value)
    assert str(path) in error.value.message


def test_paths_and_encodings(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load_limits(tmp_path / "none.toml")
    with pytest.raises(DataError):
        load_limits(tmp_path)
    path = tmp_path / "limits.toml"
    path.write_bytes(b"\xef\xbb\xbfschema_version = 1\r\n[pairs]\r\nt0_ns = {max = 1}\r\n")
    assert load_limits(path).schema_version == SCHEMA_VERSION


def test_the_example_of_the_documentation_is_a_limits_file(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
    (tmp_path / "site.toml").write_text(text.split("```toml\n")[1].split("```")[0])
    found = load_limits(tmp_path / "site.toml")
    assert (len(found.node), len(found.gpus), len(found.pairs), list(found.pair)) == (2, 3, 4, ["0>1"])
