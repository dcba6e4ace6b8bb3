"""Two real processes, one GPU each: memory of the other one is worth the same as one's own process's."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xstage_bench.measure.compare_memories import compare

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("two_gpus")]
ROOT = Path(__file__).parents[2]
MODULE = [sys.executable, "-m", "xstage_bench", "measure", "processes", "--repetitions", "5"]


def launch(memory: str, out: Path, *, ranks: int) -> dict[str, Any]:
    """Start the ranks as torchrun would; what rank 0 wrote."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    command = [*MODULE, "--memory", memory, "--out", str(out)]
    plain = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if ranks > 1 else {}
    every = [{**plain, **job, **({"RANK": str(r), "LOCAL_RANK": str(r)} if job else {})} for r in range(ranks)]
    running = [subprocess.Popen(command, cwd=ROOT, env=e, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for e in every]
    try:
        for process in running:
            _, said = process.communicate(timeout=240)
            assert process.returncode == 0, said
    finally:
        for process in running:
            process.kill()
    return dict(json.loads(out.read_text()))


@pytest.fixture(scope="module")
def reference(two_gpus: object, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch("plain", tmp_path_factory.mktemp("plain") / "plain.json", ranks=1)


@pytest.mark.parametrize("memory", ["ipc", "nvshmem"])
def test_memory_of_another_process_is_equal_within_3_percent(memory: str, reference: dict[str, Any], tmp_path: Path) -> None:
    if memory == "nvshmem" and importlib.util.find_spec("nvshmem") is None:
        pytest.skip("NVSHMEM is not installed: pip install 'xstage-bench[nvshmem]'")
    other = launch(memory, tmp_path / "other.json", ranks=2)
    assert other["launcher"] == "torchrun"
    assert compare([reference, other])["largest_deviation"] < 0.03
