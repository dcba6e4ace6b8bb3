"""Nodes by name on the command line: listed, shown, scaled, predicted with; and one's own node, added and packed."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import h200
import pytest

from xstage_bench.cli import run
from xstage_bench.cli.options import MODEL, NODE
from xstage_bench.machine.facts import GpuFacts
from xstage_bench.machine.gpus import entries, user_folder
from xstage_bench.model.run_fit import find_model
from xstage_bench.model.scaled_node import SCALED
from xstage_bench.model.sms import sms_of
from xstage_bench.model.stage import stage_at
from xstage_bench.show.export.node_entry import entry_toml, secrets_in

RECORDED = Path(h200.MODEL).parent
BURSTS = {"producers": 64, "warps": 4, "start": "free", "bursts": [{"bytes": 65536}, {"bytes": 65536, "gap_cycles": 2000}]}


@pytest.fixture(autouse=True)
def no_nodes_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def call(capfdbinary: Any, *words: object, code: int = 0) -> tuple[Any, str]:
    """The JSON object of one call of ``xstage``, and what it says on stderr."""
    status = run([*map(str, words), "--json"])
    out, err = capfdbinary.readouterr()
    assert status == code, err
    return json.loads(out), err.decode()


def test_the_list_and_one_node(capfdbinary: Any) -> None:
    listed, _ = call(capfdbinary, "nodes")
    assert {n["name"] for n in listed["nodes"]} == set(entries())
    shown, _ = call(capfdbinary, "nodes", "show", "h800-nv8")
    drain, nominal = shown["facts"]["stage.drain_gb_per_s"], shown["facts"]["link.nominal_gb_per_s"]
    assert (drain["status"], drain["rule"], nominal["status"]) == ("scaled", "share-of-nominal", "published")
    assert drain["low"] < drain["value"] < nominal["value"]
    for words, near in ((("nodes", "shwo"), "did you mean 'show'"), (("nodes", "show", "h900"), "no node 'h900'")):
        refused, _ = call(capfdbinary, *words, code=2)
        assert near in refused["error"]
    assert run(["nodes", "show", "b200-nv18"]) == 0
    text = capfdbinary.readouterr()[0].decode()
    assert "ParallelKittens" in text
    assert "unknown: sm_clock_mhz" in text


@pytest.mark.parametrize(
    ("node", "library", "ranks", "expected"),
    [
        ("h200-nv18", "deep_ep", 8, {"num_sms": 12, "nvlink_gbs": 369.7, "sm_write_gbs": 50.7}),
        ("h200-nv18", "deep_ep", 2, {"num_sms": 20}),
        ("h200-nv18", "nccl", 8, {"NCCL_SYM_CTAS": 32}),
        ("l40s", "deep_ep", 8, {"num_sms": 4}),
    ],
)
def test_arguments_of_other_libraries(capfdbinary: Any, node: str, library: str, ranks: int, expected: dict[str, float]) -> None:
    found, _ = call(capfdbinary, "nodes", "args", node, "--for", library, "--ranks", ranks)
    assert {a["name"]: a["value"] for a in found["arguments"]}.items() >= expected.items()
    assert all(a["formula"] and "read 20" in a["source"] for a in found["arguments"])


@pytest.mark.parametrize("node", list(entries()))
def test_every_node_is_a_model(node: str) -> None:
    model = find_model(Path(node))
    facts, stage = entries()[node].facts, stage_at(model, int(entries()[node].facts.sm_count.value or 0), 4)
    assert sms_of(model) == facts.sm_count.value
    assert model.backend.startswith(SCALED) == (node != "h200-nv18")
    rates = [d.makespan.value or d.sustained.value for p in model.pairs if not p.is_local for d in p.drain]
    nominal = facts.link.nominal_gb_per_s.value
    assert all(0 < rate <= nominal for rate in rates)
    size = stage.largest_free_burst_bytes()
    assert size is not None
    assert size * stage.producers < 2 * (stage.capacity_bytes.value or 0)
    assert stage.would_stall(8 * size)


def test_verbs_take_a_name(capfdbinary: Any, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(BURSTS))
    times = {}
    for node in ("h200-nv18", "h800-nv8"):
        found, err = call(capfdbinary, "predict", node, tmp_path / "s.json")
        times[node] = sum(burst["issue_cycles"] for burst in found["schedules"][0]["bursts"])
        assert ("SCALED" in err) == (node == "h800-nv8")
    assert 1.5 < times["h800-nv8"] / times["h200-nv18"] < 2.6, "beyond the knee as much slower as the link"
    advice, _ = call(capfdbinary, "advise", "h200-nv18", "--bytes", 32768, "--tile-ns", 4200, "--tiles", 16)
    assert advice["backend"] == "cuda"
    exported, _ = call(capfdbinary, "export", "b200-nv18")
    assert exported["provenance"]["backend"] == f"{SCALED}h200-nv18"
    probes, _ = call(capfdbinary, "plan", "--backend", "sim:h20-nv18", "--quick")
    assert probes["backend"] == "sim:h20-nv18"
    refused, _ = call(capfdbinary, "compare", "h800-nv8", RECORDED, code=1)
    assert "backend" in refused["error"], "a scaled number never stands beside a measured one unasked"
    nowhere, _ = call(capfdbinary, "predict", "nowhere", tmp_path / "s.json", code=2)
    assert "no such file, run folder or node" in nowhere["error"]
    assert [c.value for c in NODE.shell_complete(None, None, "h20")] == ["h20-nv18", "h200-nv18"]
    assert "h800-nv8" in [c.value for c in MODEL.shell_complete(None, None, "h8")]


def test_ones_own_node(capfdbinary: Any, tmp_path: Path) -> None:
    call(capfdbinary, "nodes", "add", RECORDED, "--name", "mine")
    assert sorted(p.name for p in user_folder().iterdir()) == ["mine.model.json", "mine.toml"]
    own, reference = entries()["mine"].facts, entries()["h200-nv18"].facts
    assert own.stage.drain_gb_per_s.value == pytest.approx(reference.stage.drain_gb_per_s.value, rel=0.02)
    assert (own.stage.drain_gb_per_s.status, own.sm_count.value) == ("measured", reference.sm_count.value)
    compared, _ = call(capfdbinary, "compare", RECORDED, "--reference", "mine")
    assert compared["verdict"] in ("same", "undetermined")
    for words, why in ((("add", RECORDED, "--name", "mine"), "already"), (("add", RECORDED, "--name", "My Node"), "no name")):
        refused, _ = call(capfdbinary, "nodes", *words, code=2)
        assert why in refused["error"]
    packed, _ = call(capfdbinary, "nodes", "submit", RECORDED, "--name", "h200-nv18-x2", "--out", tmp_path / "n.tar.gz")
    assert (tmp_path / "n.tar.gz").stat().st_size < 1e6
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "n.tar.gz").read_bytes())) as tar:
        files = {m.name: tar.extractfile(m).read().decode() for m in tar.getmembers()}
    assert set(files) == set(packed["files"]) >= {"h200-nv18-x2.toml", "h200-nv18-x2.model.json", "measured.json"}
    assert [secrets_in(text) for text in files.values()] == [[]] * len(files)
    assert "1980" in files["measured.json"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GPU-60850100-ca60-f302-b118-74ae106ea6a8", "a UUID"),
        ("0000:00:06.0", "a PCI address"),
        ("--out /home/me/x", "a path"),
        ("me@host.example", "an address"),
        ("10.0.0.12", "an address"),
        ("580.159.04, 0.1.0, results/h200-x2, B/cycle", None),
    ],
)
def test_secrets_are_seen(text: str, found: str | None) -> None:
    assert secrets_in(text) == ([] if found is None else [found])


def test_an_entry_is_written_as_it_is_read() -> None:
    import tomllib

    import msgspec

    for entry in entries().values():
        assert msgspec.convert(tomllib.loads(entry_toml(entry.facts)), GpuFacts).stage == entry.facts.stage
