"""Fixtures that several rooms use."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_nvml import FakeNvml
from loops import compile_loops
from sass import kernels
from sharing import share

from xstage_bench.device.backend import resolve_backend
from xstage_bench.measure.bursts import record_run
from xstage_bench.measure.plan import Options
from xstage_bench.model.document import load_model, save
from xstage_bench.model.run_fit import fit_run
from xstage_bench.record.reader import load_run

# Hundreds of processes are started: what Python compiles is kept, whatever the environment says, or half of the time goes there.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.pop("COLUMNS", None)  # pytest's workers set it, and what is printed would be folded to it
# The same examples in every run: what fails is the change, not the draw. HYPOTHESIS_SEEK=1 draws others.
with contextlib.suppress(ImportError):  # a machine with GPUs need not have it
    from hypothesis import settings

    settings.register_profile("same", derandomize=True)
    if not os.environ.get("HYPOTHESIS_SEEK"):
        settings.load_profile("same")
KEPT_S = 7 * 86400
MANY = 1000


@pytest.fixture(scope="session", autouse=True)
def compiled_once(pytestconfig: pytest.Config) -> Iterator[None]:
    """Kernels are compiled once for all workers and for later sessions, by the hash of all they come from; none in the user's cache."""
    folder = pytestconfig.rootpath / ".pytest_cache" / "d" / "kernels"
    for path in folder.rglob("*.*") if folder.is_dir() else ():
        if path.stat().st_mtime < time.time() - KEPT_S:
            path.unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XSTAGE_CACHE_DIR", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def loops_compiled_once(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> None:
    """Before the first of many tests; one that is run alone compiles what it needs."""
    if len(request.session.items) > MANY:
        compile_loops(pytestconfig.rootpath / ".pytest_cache" / "d" / "loops")


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A quick run of one simulated pair by every probe, and its fit; recorded once for all test processes, and not to be changed."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "quick"
    options = Options(resolve_backend("sim"), pairs=((0, 1),), quick=True, processes=2, repetitions=4, seed=0)

    def make() -> None:
        if not (folder / "model.json").exists():
            save(folder / "model.json", fit_run(record_run(options, folder / "small", ["xstage", "profile"]), resamples=20))

    share(folder, {"small": make})
    return load_run(folder / "small"), load_model(folder / "model.json")


@pytest.fixture
def fake_nvml() -> Callable[..., Any]:
    """Make an NVML over the hand-made node with 2 x H200; it may be changed before it is asked."""
    return FakeNvml


@pytest.fixture
def sass_of() -> Callable[[bytes, str], list[str]]:
    """Disassemble one kernel of a CUBIN: its instructions and labels, one a line."""
    return lambda cubin, kernel: kernels(cubin)[kernel]
