"""The fused attention on real GPUs: right at every length, both ways to store, both directions at once, and clean under memcheck."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ulysses_small

from xstage_bench.kernels.attention.attention import AttentionBuild
from xstage_bench.kernels.attention.problem import Placing, Problem
from xstage_bench.kernels.attention.rig import Rig
from xstage_bench.kernels.attention.variants import fused

pytestmark = pytest.mark.gpu
SMALL = Path(__file__).with_name("ulysses_small.py")


@pytest.fixture(scope="module")
def small(two_gpus: object) -> Any:
    module = ulysses_small
    module.gpus = module.open_gpus()
    return module


@pytest.mark.parametrize("seq", [1, 127, 128, 4096, 6889, 32760])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "ranks"), [(4, 4, 128, 2), (4, 2, 64, 2), (8, 2, 128, 8)])
def test_every_row_reaches_its_owner_and_is_right(small: Any, seq: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> None:
    found = small.outcomes(small.gpus, Problem(heads, kv_heads, head_dim, seq, ranks), everything=seq < 10000)
    assert found
    assert small.wrong_of(found) == {}


def test_a_wrong_row_is_found(small: Any) -> None:
    """The check itself: one owner's rows computed from other inputs are an error, and rows never sent are counted."""
    problem = Problem(2, 2, 128, 512, 2)
    rig = Rig(small.gpus, Placing(problem, (0, 1)), seed=1)
    try:
        variant = fused(rig, AttentionBuild(128, 128, 2), "row-major")
        rig.inputs[0], kept = {**rig.inputs[0], "v": rig.inputs[0]["k"]}, rig.inputs[0]
        assert not rig.verify(variant.queue)["ranks"][0].ok
        rig.inputs[0] = kept
        nothing = rig.verify(lambda: None)
        assert nothing["unwritten"] == 2 * 512 * 128
        assert not any(verdict.ok for verdict in nothing["ranks"])
    finally:
        rig.close()


def test_memcheck_finds_nothing(small: Any) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    # CuPy and cuda.bindings ask the driver for what it may not have, and handle its refusals: those are no errors of the kernels' accesses.
    tool = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    command = [sanitizer, *tool, sys.executable, str(SMALL), "130"]
    root = str(SMALL.parent.parent.parent)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "0 errors" in done.stdout
