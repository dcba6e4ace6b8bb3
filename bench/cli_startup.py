"""Time ``xstage --help`` in a fresh process: at most 0.3 s, the fastest of 15 (the machine's other work is not ours)."""

from __future__ import annotations

import subprocess
import sys
import time

LIMIT_S, RUNS = 0.3, 15


def once() -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "xstage_bench", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    times = sorted(once() for _ in range(RUNS))
    print(f"xstage --help: fastest {times[0]:.3f} s, median {times[RUNS // 2]:.3f} s, limit {LIMIT_S} s")
    sys.exit(times[0] > LIMIT_S)
