"""What is promised to be fast enough: bars for a machine that does nothing else, so not of `make test`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from xstage_bench.device.sim import SimDevice
from xstage_bench.schedule.burst_files import load_bursts
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution


def mixture(n: int, seed: int) -> list[Schedule]:
    """Return isolated, free and timed schedules of up to 132 producers, 16 warps, 128 stores per warp and 16 bursts, in equal parts."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        k, warps, stores = int(rng.integers(1, 133)), int(rng.choice([1, 2, 4, 8, 16])), int(rng.integers(1, 129))
        size = 512 * warps * stores
        if i % 3 == 0:
            out.append(Schedule((Burst(size),), k, warps))
        elif i % 3 == 1:
            gap = int(rng.choice([0, 500, 4000, 32_000]))
            out.append(Schedule(tuple(Burst(size, gap_cycles=gap) for _ in range(16)), k, warps, start="free"))
        else:
            period = int(rng.uniform(0.5, 2) * size * k / 372)
            out.append(Schedule(tuple(Burst(size, start_ns=period * j) for j in range(16)), k, warps, start="timed"))
    return out


def test_a_thousand_schedules_of_three_repetitions_take_less_than_a_minute_of_one_core() -> None:
    schedules = mixture(1000, 1)
    order = np.random.default_rng(2).permutation(3000)
    begin = time.process_time()
    n = sum(1 for _ in SimDevice().measure([Execution(schedules[i % 1000], i // 1000) for i in order]))
    assert n == 3000
    assert time.process_time() - begin < 60


def test_a_million_rows_of_a_schedule_file_take_less_than_half_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "million.csv"
    head = "schedule,producers,warps,start,bytes,gap_cycles\n"
    path.write_text(head + "".join(f"s{i // 20},132,4,free,{2048 * (i % 50)},{i % 977}\n" for i in range(1_000_000)))
    begin = time.process_time()
    found = load_bursts(path)
    assert time.process_time() - begin < 30
    assert len(found) == 50_000
    assert found[-1].bursts[-1] == Burst(2048 * 49, 999_999 % 977)
