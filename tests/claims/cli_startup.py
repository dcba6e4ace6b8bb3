"""Time ``xstage --help`` (at most 0.3 s) and ``xstage doctor`` (2 s) in fresh processes, the fastest of some: other work is not ours."""

from __future__ import annotations

import subprocess
import sys
import time

LIMITS_S = {"--help": 0.3, "doctor": 2.0}
RUNS = 9


def once(word: str) -> float:
    """Return the wall time of one call; the doctor exits 3 where no pair can be measured."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "xstage_bench", word], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


if __name__ == "__main__":
    slow = False
    for word, limit in LIMITS_S.items():
        times = sorted(once(word) for _ in range(RUNS))
        slow |= times[0] > limit
        print(f"xstage {word}: fastest {times[0]:.3f} s, median {times[RUNS // 2]:.3f} s, limit {limit} s")
    sys.exit(slow)
