"""Wheel, sdist and bare checkout: each holds what it needs, and the program runs from each."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import xstage_bench

ROOT = Path(__file__).parent.parent
#: Files that every form must hold; the folders beside the package lie in _assets in a wheel.
CODE = ("xstage_bench/cli/profile.py", "xstage_bench/workloads/moe.toml", "xstage_bench/py.typed", "xstage_bench/device/sim/__init__.py")
ASSETS = ("probes/isolated.py", "probes/holdout.py", "analysis/issue_time.py", "cuda/burst.cu", "cuda/flavours.cuh")


def call(*words: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("XSTAGE", "PYTEST"))}
    environ["PYTHONPATH"] = "" if path is None else str(path)
    return subprocess.run([sys.executable, *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist, and the wheel from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    done = call("-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT), cwd=out)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,), (sdist,) = list(out.glob("*.whl")), list(out.glob("*.tar.gz"))
    return wheel, sdist


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Install the wheel, without its dependencies, in a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    done = call("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(built[0]), cwd=target)
    assert done.returncode == 0, done.stderr
    return target


def test_the_wheel_holds_code_and_assets(built):
    assert built[0].stat().st_size < 5e6
    with zipfile.ZipFile(built[0]) as archive:
        names = set(archive.namelist())
    assert {*CODE, *(f"xstage_bench/_assets/{asset}" for asset in ASSETS)} <= names
    assert any(name.startswith("xstage_bench/_assets/results/reference/") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.partition("/")[0] for name in names} == {"xstage_bench", f"xstage_bench-{xstage_bench.__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_the_sdist_can_be_tested(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*CODE, *ASSETS, "Makefile", "LICENSE", "tests/conftest.py", "scripts/cuda_extra.py", "docs/cli.md", "pyproject.toml"} <= names
    carried = ("results/reference", "results/h200-x2/profile/model.json")
    assert not [name for name in names if name.startswith(("results/", ".venv")) and not name.startswith(carried)]


def test_the_wheel_runs_on_its_own_assets(installed, tmp_path):
    assert "from xstage_bench.cli import main" in (installed / "bin" / "xstage").read_text()
    where = call("-c", "import xstage_bench; print(xstage_bench.__file__)", cwd=tmp_path, path=installed)
    assert Path(where.stdout.strip()).is_relative_to(installed)
    probes = call("-m", "xstage_bench", "probes", "--json", cwd=tmp_path, path=installed)
    assert probes.returncode == 0, probes.stderr
    assert '"name": "isolated"' in probes.stdout
    run = call("-m", "xstage_bench", "run", "--backend", "sim", "--quick", "--only", "timer", "--out", "r", cwd=tmp_path, path=installed)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "r" / "manifest.json").exists()
    for node in ("h200-nv18", "h800-nv8"):
        words = ("predict", node, "--workload", "flux.1-1024", "--ep", "8", "--json") if node == "h200-nv18" else ("export", node)
        named = call("-m", "xstage_bench", *words, cwd=tmp_path, path=installed)
        assert named.returncode == 0, (words, named.stderr)


def test_a_bare_checkout_runs(tmp_path):
    for folder in ("xstage_bench", "probes", "analysis", "cuda"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert call("-m", "xstage_bench", "--version", cwd=tmp_path).stdout.strip().endswith(xstage_bench.__version__)
    probes = call("-m", "xstage_bench", "probes", cwd=tmp_path)
    assert probes.returncode == 0, probes.stderr
    assert "holdout" in probes.stdout


def test_pre_commit_fetches_nothing():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (\S+)", text) == ["local"]
