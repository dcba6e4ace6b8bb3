"""A thousand runs on sick simulated nodes: none hangs, none shows a traceback or a wrong number as good, every folder can be read.

    python tests/claims/fault_campaign.py [--runs 1000]

Each seed draws some of: stores that are lost, operations that hang, a throttled GPU, a slow link, an error in the middle, NVML queries that
fail and GPUs that are lost, a kill -9 or a Ctrl-C at a random moment, a disk that is full or read-only from a random write on. The run is
all of `xstage run` and the fit of T0, R and Q: 2 pairs, 11 burst sizes, 3 processes of 2 repetitions. After a kill, an interrupt or a
full disk it is resumed on a healthy disk. What must hold is in `judge`.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fake_nvml
import msgspec

from xstage_bench.device.backend import BackendChoice
from xstage_bench.device.sim import SimDevice
from xstage_bench.device.sim.faults import Faults
from xstage_bench.errors import DataError, XStageError
from xstage_bench.io import atomic
from xstage_bench.judge.check import criticise
from xstage_bench.measure import bursts as runner
from xstage_bench.measure.plan import Options
from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.run_fit import usable_samples
from xstage_bench.record.manifest import MANIFEST_NAME
from xstage_bench.record.reader import load_run
from xstage_bench.schedule.bursts import Burst, Schedule

PAIRS = ((0, 1), (1, 0))
RATE_GB_PER_S, TOLERANCE = 371.3, 0.08
DEADLINE_S = 120
SIZES = tuple(2048 * n for n in (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256))
OPTIONS = Options(BackendChoice("sim:h200-nv18-x2", "campaign", True), only=("isolated",), repetitions=6)
QUERIES = (
    "nvmlDeviceGetClockInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues", "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetNvLinkState",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """What is wrong in one run. `end` says how it is broken off, at the `moment`-th progress report or write."""

    seed: int
    faults: Faults
    end: str | None
    moment: int
    nvml: fake_nvml.FakeNvml


@dataclass(slots=True)
class Outcome:
    """How a run went: what was wrong with it, and what must not have happened."""

    kinds: list[str]
    broken: list[str] = field(default_factory=list)


def draw(seed: int) -> Case:
    """Draw the faults of one run."""
    rng = np.random.default_rng([11, seed])

    def some(probability: float) -> tuple[tuple[int, int], ...]:
        return tuple(pair for pair in PAIRS if rng.random() < probability)

    faults = Faults(
        dropped=some(0.15),
        hanging=some(0.15),
        throttle_after=int(rng.integers(0, 400)) if rng.random() < 0.25 else None,
        slow={pair: float(rng.uniform(0.4, 0.9)) for pair in some(0.2)} or None,
        error_after=int(rng.integers(0, 300)) if rng.random() < 0.15 else None,
    )
    nvml = fake_nvml.FakeNvml()
    nvml.unsupported = {name for name in QUERIES if rng.random() < 0.1}
    if rng.random() < 0.1:
        nvml.gpus[1]["lost"] = True
    if rng.random() < 0.05:
        nvml.node["library"] = False
    end = rng.choice(["kill", "interrupt", "full", "read-only", ""], p=[0.15, 0.15, 0.15, 0.1, 0.45])
    return Case(seed, faults, str(end) or None, int(rng.integers(0, 14)), nvml)


def small(sweep: Sweep) -> list[Schedule]:
    """A sweep of all SMs that identifies T0, R and Q."""
    return [Schedule((Burst(size),), sweep.sm_count, 4, sweep.source, sweep.destination) for size in SIZES]


@contextlib.contextmanager
def sick(case: Case, *, disk: bool) -> Iterator[None]:
    """Replace the opening of devices, NVML, the probes, and with `disk` the disk."""
    probes = {"isolated": Probe("isolated", "campaign", small)}
    left = [case.moment]
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if disk and case.end in ("full", "read-only"):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC if case.end == "full" else errno.EROFS, os.strerror(errno.ENOSPC))
        real(descriptor)

    def opened(choice: Any, *, seed: int, process: int) -> SimDevice:
        return SimDevice(seed=seed, process=process, faults=case.faults)

    with (
        patch.object(runner, "open_device", opened),
        patch("xstage_bench.measure.plan.load_probes", lambda folders=(): probes),
        patch.dict(sys.modules, {"pynvml": case.nvml}),
        patch.object(atomic.os, "fsync", fsync),
    ):
        yield


def measure(case: Case, folder: Path, *, resume: bool = False) -> str:
    """Run once; return how it ended: ``done``, ``interrupted`` or the error's first words."""
    left = [case.moment]

    def progress(now: runner.Progress) -> None:
        left[0] -= 1
        if left[0] < 0 and not resume:
            if case.end == "kill":
                os._exit(137)
            if case.end == "interrupt":
                raise KeyboardInterrupt

    try:
        with sick(case, disk=not resume):
            runner.record_run(OPTIONS, folder, ["xstage", "run"], resume=resume, progress=progress)
    except XStageError as error:
        return f"refused: {error.message}"
    except KeyboardInterrupt:
        return "interrupted"
    return "done"


def one(seed: int, folder: Path) -> Outcome:
    """Run one seed in processes of its own, and read, resume and fit what it left."""
    back, forth = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(2 * DEADLINE_S)
        os.write(forth, msgspec.json.encode(followed(draw(seed), folder)))
        os._exit(0)
    os.close(forth)
    with os.fdopen(back, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return msgspec.json.decode(said, type=Outcome) if said else Outcome(["?"], ["it hung, or died while what it left was judged"])


def followed(case: Case, folder: Path) -> Outcome:
    """Measure in a child, which a kill ends; then judge. Forks come before pyarrow has threads, which a fork does not survive."""
    f = case.faults
    kinds = [n for n in ("dropped", "hanging", "slow") if getattr(f, n)]
    kinds += [n for n, v in (("throttled", f.throttle_after), ("error", f.error_after)) if v is not None]
    kinds += ["NVML"] if case.nvml.unsupported or case.nvml.node.get("library") is False or case.nvml.gpus[1].get("lost") else []
    outcome = Outcome([*kinds, *([case.end] if case.end else [])] or ["healthy"])
    child = os.fork()
    if child == 0:
        signal.alarm(DEADLINE_S)
        code = 9
        with contextlib.suppress(BaseException):
            code = {"done": 0, "interrupted": 1}.get(measure(case, folder), 2)
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        outcome.broken.append(f"ended by signal {os.WTERMSIG(status)}: it hung")
    elif os.WEXITSTATUS(status) == 9:
        outcome.broken.append("an exception that is none of ours")
    try:
        judge(case, folder, outcome)
    except Exception as error:
        outcome.broken.append(f"{type(error).__name__}: {error}")
    return outcome


def judge(case: Case, folder: Path, outcome: Outcome) -> None:
    """Everything that must hold, whatever was wrong."""
    if not (folder / MANIFEST_NAME).exists():
        return  # nothing was begun: the disk refused the very first file
    load_run(folder).samples()
    if not load_run(folder).manifest.complete and measure(case, folder, resume=True) != "done":
        outcome.broken.append("it cannot be resumed")
        return
    run = load_run(folder)
    bad = {f"{a}>{b}" for a, b in (*case.faults.dropped, *case.faults.hanging)}
    if not bad <= set(run.manifest.failed_pairs):
        outcome.broken.append(f"sick pairs {bad} passed as {set(run.manifest.failed_pairs)}")
    if not run.manifest.simulated:
        outcome.broken.append("simulated numbers are not labelled")
    try:
        model = calibrate(usable_samples(run), backend="sim", gpu="simulated", sm_clock_mhz=1980.0, resamples=20)
    except DataError:
        return  # no pair works: there is no model, and no number
    for pair in model.pairs:
        rate = pair.burst_gap[0].drain_gb_per_s
        if pair.pair in bad:
            outcome.broken.append(f"a number of the sick pair {pair.pair}")
        elif rate.value is not None:
            source, _, destination = pair.pair.partition(">")
            true = RATE_GB_PER_S * case.faults.link_factor(int(source), int(destination))
            if abs(rate.value / true - 1) > TOLERANCE:
                outcome.broken.append(f"R of {pair.pair} is {rate.value:.0f}, true is {true:.0f} GB/s")
        elif rate.reason is None:
            outcome.broken.append("a missing number without a reason")
    if case.faults.throttle_after == 0 and not any(f.status == "fail" for f in criticise(run, model)):
        outcome.broken.append("a run without a valid sample passed the critique")


def main() -> int:
    """Run all seeds; exit 1 when anything that must hold did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed; those that were looked at before prove less")
    options = parser.parse_args()
    begin = time.perf_counter()
    kinds: Counter[str] = Counter()
    broken = 0
    with tempfile.TemporaryDirectory() as name:
        for seed in range(options.first, options.first + options.runs):
            outcome = one(seed, Path(name) / f"run{seed}")
            kinds.update(outcome.kinds)
            for what in outcome.broken:
                broken += 1
                print(f"seed {seed} ({', '.join(outcome.kinds)}): {what}", flush=True)
    said = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    print(f"{options.runs} runs in {time.perf_counter() - begin:.0f} s, {broken} broken promises; runs with {said}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
