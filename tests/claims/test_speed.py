"""What is promised to be fast enough: bars for a machine that does nothing else, so not of `make test`.

What takes milliseconds is held as a ratio beside a fixed numpy workload of about 7 ms (`yardstick`), so that a slow machine fails nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from xstage_bench.device.sim import SimDevice
from xstage_bench.model.advise.job import Job, advise_job
from xstage_bench.model.api import predict
from xstage_bench.model.run_fit import find_model
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


def yardstick() -> float:
    """Processor seconds of one singular value decomposition of 200 x 200 numbers, the fastest of ten."""
    values = np.random.default_rng(0).random((200, 200))
    return min(took(lambda: np.linalg.svd(values)) for _ in range(10))


def took(work: Callable[[], object]) -> float:
    """Processor seconds, of this process."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


RECORDED = Path(__file__).parents[2] / "results/h200-x2/profile"


def test_one_prediction_after_the_other_takes_a_fraction_of_a_small_decomposition() -> None:
    pytest.importorskip("numba", exc_type=ImportError)
    model = find_model(RECORDED)
    schedule = Schedule(tuple(Burst(65_536, gap_cycles=4000) for _ in range(16)), 132, 4, start="free")
    wanted, found = predict(model, schedule), predict(model, schedule, compiled=True)
    np.testing.assert_allclose(found.issue_cycles, wanted.issue_cycles, rtol=1e-6)
    fifty = min(took(lambda: [predict(model, schedule, compiled=True) for _ in range(50)]) for _ in range(3))
    assert fifty / 50 < 0.3 * yardstick(), "0.1 where it was written: 0.7 ms; numpy's loop takes a hundred times as long"


def test_advice_for_four_thousand_tasks_does_not_wait_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xstage_bench.model.tasks.compiled.is_kept", lambda *what: False)  # as after installation
    model = find_model(RECORDED)
    job = Job(bytes=32_768, tile_ns=4200, tiles=15, quiet_tiles=15, quiet_tile_ns=4000, pair="0>1")
    assert took(lambda: advise_job(model, job)) < 1000 * yardstick(), "400 where it was written: 2.7 s; compiling takes 20"


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
