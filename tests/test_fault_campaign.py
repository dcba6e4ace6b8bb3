"""A small version of tests/claims/fault_campaign.py, which draws a thousand sick nodes. In a process of its own: it forks."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_sick_nodes_neither_hang_nor_lie() -> None:
    command = [sys.executable, str(ROOT / "tests" / "claims" / "fault_campaign.py"), "--runs", "6"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 runs in" in done.stdout
    assert " 0 broken promises" in done.stdout
    for kind in ("hanging", "dropped", "kill", "full"):
        assert kind in done.stdout, "these seeds draw the main faults"
