"""Print the extras for this machine: ``[cuda13,fast]`` or ``[cuda12,fast]`` by its driver; ``[fast]`` without one.

Runs before anything is installed, so it uses the standard library alone. The thresholds are those of ``xstage_bench.machine.doctor``
(a test compares them).
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

EXTRAS = ((580, "cuda13"), (525, "cuda12"))


def driver_version() -> str | None:
    """Ask nvidia-smi, else read what the kernel module says about itself."""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found = re.search(r"^\d+\.[\d.]+", subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout, re.M)
    except (OSError, subprocess.SubprocessError):
        found = None
    if found is None:
        try:
            found = re.search(r"(?<=\s)\d{3,}\.\d+[\d.]*", Path("/proc/driver/nvidia/version").read_text())
        except OSError:
            return None
    return found.group() if found else None


def extra(driver: str | None) -> str | None:
    """Return the extra of a driver version."""
    major = int(driver.partition(".")[0]) if driver else 0
    return next((name for lowest, name in EXTRAS if major >= lowest), None)


if __name__ == "__main__":
    name = extra(driver_version())
    print(f"[{name},fast]" if name else "[fast]")
