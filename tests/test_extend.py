"""What docs/extend.md promises, done: each example of the page is put where the page says, and works on the simulator."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from xstage_bench.device.cuda.compile import compile_kernel
from xstage_bench.device.cuda.variant import OWN_LAYOUT, Variant
from xstage_bench.errors import XStageError
from xstage_bench.schedule.flavour import FLAVOURS, load_flavour
from xstage_bench.schedule.layouts import load_layout

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")


def example(language: str, of: str) -> str:
    """The one example in this language that holds this word."""
    found = [text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.S | re.M) if kind == language and of in text]
    assert len(found) == 1, (language, of)
    return found[0]


def call(*words: str, cwd: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("XSTAGE", "CUDA"))} | {"PYTHONPATH": str(root)}
    return subprocess.run([sys.executable, "-m", "xstage_bench", *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=200)


def done(*words: str, cwd: Path, root: Path = ROOT) -> str:
    found = call(*words, cwd=cwd, root=root)
    assert found.returncode == 0, (words, found.stderr)
    return found.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a checkout needs to run, with the page's figure, GPU and verb put into it: one file, or one entry, each."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("xstage_bench", "probes", "analysis", "cuda"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "results" / "reference", root / "results" / "reference")
    first, *others = sorted((root / "analysis").glob("[!_]*.py"))
    for path in others:  # drawing them all takes a minute
        path.unlink()
    assert first.exists()
    (root / "analysis" / "mine.py").write_text(example("python", "FIGURE ="))
    (root / "xstage_bench" / "machine" / "nodes" / "my-gpu.toml").write_text(example("toml", "NVIDIA X1"))
    (root / "xstage_bench" / "cli" / "hello.py").write_text(example("python", "hello"))
    (table,) = (path for path in (root / "xstage_bench" / "cli").glob("*.py") if re.search(r"^VERBS\b.*\{$", path.read_text(), re.M))
    table.write_text(re.sub(r"^(VERBS\b.*\{)$", r'\1\n    "hello": "Say hello.",', table.read_text(), count=1, flags=re.M))
    return root


def test_a_probe_of_ones_own_is_measured(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "small.py").write_text(example("python", "PROBE ="))
    commands = example("sh", "--probe-path").splitlines()
    listed, run, export = (line.removeprefix("xstage ").split() for line in commands)
    assert re.search(r"^small +fitted", done(*listed, cwd=tmp_path), re.M)
    done(*run, cwd=tmp_path)
    done(*export, cwd=tmp_path)
    rows = [row for row in csv.DictReader((tmp_path / "small.csv").open()) if row["probe"] == "small"]
    assert {int(row["bytes"]) for row in rows} == {n * 512 for n in range(1, 9)}
    assert {row["status"] for row in rows} <= {"ok", "warmup"}
    manifest = json.loads((tmp_path / "small" / "manifest.json").read_text())
    assert manifest["simulated"]
    assert manifest["complete"]
    (tmp_path / "mine" / "small.py").write_text(example("python", "PROBE =") + "\nundefined_name\n")
    broken = call(*listed, cwd=tmp_path)
    assert broken.returncode == 1
    assert "small.py, line" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_a_figure_of_ones_own_is_drawn(checkout: Path, quick_run: Any, tmp_path: Path) -> None:
    run, _ = quick_run
    model = run.folder.parent / "model.json"
    done("report", str(run.folder), "--model", str(model), "--out", "page.html", cwd=tmp_path, root=checkout)
    page = (tmp_path / "page.html").read_text()
    section = page.partition("One bar per pair.")[0].rpartition("<figure")[2]
    assert "<svg" in section or "data:image" in section, "the figure is drawn, with its caption"


def test_a_flavour_of_ones_own_compiles_and_stores_as_it_says(tmp_path: Path, sass_of: Any) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "mine.cuh").write_text(example("cpp", "xstage-flavour:"))
    flavour = load_flavour(tmp_path / "mine.cuh")
    assert (flavour.name, flavour.warp_store_bytes) == ("st.mine", 512)
    variant = Variant(flavour)
    lines = sass_of(compile_kernel("burst.cu", "sm_90", variant.defines(), variant.headers()), "xstage_burst")
    assert sum("STG.E" in line and ".128" in line for line in lines) >= 4
    done("plan", "--backend", "sim", "--quick", "--only", "timer", "--flavour-path", "mine.cuh", cwd=tmp_path)


def test_a_layout_of_ones_own_compiles_and_stores_as_it_says(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "mine.cuh").write_text(example("cpp", "xstage-layout:"))
    layout = load_layout(tmp_path / "mine.cuh")
    variant = Variant(FLAVOURS["st.v4"], layout.name, own_layout=layout)
    assert compile_kernel("burst.cu", "sm_90", variant.defines(), variant.headers(), cache=False)
    with pytest.raises(XStageError, match=r"place_columns.* undefined"):
        compile_kernel("burst.cu", "sm_90", variant.defines(), {**variant.headers(), OWN_LAYOUT: ""}, cache=False)
    schedule = {"producers": 4, "warps": 4, "layout": layout.name, "bursts": [{"bytes": 32768}]}
    (tmp_path / "s.json").write_text(json.dumps(schedule))
    told = call("plan", "--backend", "sim", "--schedule", "s.json", "--layout-path", "mine.cuh", cwd=tmp_path)
    assert "does not know layout columns" in told.stderr, "the simulator has the plain one only; a name that nobody gave is unknown to all"


def test_a_gpu_of_ones_own_gives_its_rates(checkout: Path, quick_run: Any, tmp_path: Path) -> None:
    """What lays out a workload takes the tensor-core rate of the entry; without the entry it borrows that of the recorded GPU."""
    entry = tomllib.loads(example("toml", "NVIDIA X1"))
    model = json.loads((quick_run[0].folder.parent / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(model | {"gpu": entry["names"][0]}))
    code = (
        "import json, xstage_bench; from xstage_bench.workloads.rates import machine_of; "
        "print(json.dumps(machine_of(xstage_bench.load_model('model.json')).document()))"
    )
    rates = []
    for root in (checkout, ROOT):
        environ = {**os.environ, "PYTHONPATH": str(root)}
        told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
        rates.append({rate["name"]: rate for rate in json.loads(told.stdout)["rates"]}["gemm-bf16"])
    here, elsewhere = rates
    assert (here["status"], elsewhere["status"]) == ("derived", "borrowed")
    whole = entry["peak_tflops"]["bf16"]["value"] * 1e12 / entry["sm_count"]["value"]
    assert 0.5 * whole < here["value"] < whole, "a share of its peak, as the recorded GPU reaches of its own"


def test_a_verb_of_ones_own_is_there(checkout: Path, tmp_path: Path) -> None:
    assert re.search(r"^ +hello +Say hello\.", done("--help", cwd=tmp_path, root=checkout), re.M)
    assert json.loads(done("hello", "--json", cwd=tmp_path, root=checkout)) == {"hello": "world"}
    assert done("hello", cwd=tmp_path, root=checkout) == "hello, world\n"


def test_every_variable_of_the_code_is_on_the_page() -> None:
    """What the package reads from the environment under its own name, and nothing that it does not read."""
    read = {name for path in (ROOT / "xstage_bench").rglob("*.py") for name in re.findall(r'"(XSTAGE_[A-Z_]+)"', path.read_text())}
    macros = {name for path in (ROOT / "cuda").iterdir() for name in re.findall(r"\bXSTAGE_[A-Z0-9_]+", path.read_text())}
    assert set(re.findall(r"^(?:\| )?`(XSTAGE_[A-Z_]+)` \|", PAGE, re.M)) == read - macros
