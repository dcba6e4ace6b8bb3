"""The simulated device: Schedules in, Traces out, through the queueing model of this package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal

import numpy as np

from xstage_bench.device.sim import burst_gap
from xstage_bench.device.sim.core import Conditions, Ideal, run
from xstage_bench.device.sim.faults import Faults, raise_if_dropped, raise_if_error_due, raise_if_hanging
from xstage_bench.device.sim.observe import observe, observe_tasks, stream
from xstage_bench.device.sim.presets import Preset
from xstage_bench.device.sim.registered import find_preset
from xstage_bench.device.sim.scene import courses
from xstage_bench.device.sim.tasks import TaskCourse
from xstage_bench.device.sim.tasks import course_of as task_course
from xstage_bench.device.sim.timeline import store_times
from xstage_bench.errors import PairError, UsageError
from xstage_bench.schedule.bursts import HOST, Schedule, require_meeting
from xstage_bench.schedule.device import Compute, Execution, Gpu, Node
from xstage_bench.schedule.scenes import Scene, SceneTrace, seats
from xstage_bench.schedule.tasks import TaskSchedule, TaskTrace
from xstage_bench.schedule.trace import Trace

_CHUNK = 384  # executions looked ahead: bounds memory, and a batch this wide already hides the cost of a numpy call
_KEPT_BYTES = 100_000_000  # of solved courses: repetitions come in random order, and a solved schedule costs no second solution
_WARMUP_CLOCK = 0.92  # clocks ramp from 1.82 to 1.98 GHz over the first milliseconds

Peer = Literal["gpu", "host"]
_Key = tuple[str, float]  # Schedule.key() and the factor on the SM clock


class SimDevice:
    """A node whose stores pass a queueing model; always labelled simulated.

    Parameters
    ----------
    preset : str
        A key of `PRESETS`, or ``burst-gap``: data of exactly the fitted form, with its truth in `truth`.
    seed : int
        Of all noise. The same seed, process, schedule and repetition give the same Trace, whatever else is measured.
    process : int
        Which fresh process and allocation this stands for; part of the spread lies between processes.
    faults : Faults, optional
    peer : {'gpu', 'host'}
        What the pairs of `node` store to: other GPUs, or host memory.

    Raises
    ------
    UsageError
        Unknown preset, or a negative seed or process.
    """

    def __init__(
        self, preset: str = "h200-nv18-x2", *, seed: int = 0, process: int = 0, faults: Faults | None = None, peer: Peer = "gpu"
    ) -> None:
        if seed < 0 or process < 0:
            raise UsageError(f"seed {seed} and process {process} must not be negative", "use 0 or more")
        self.truth = burst_gap.BurstGapTruth() if preset == burst_gap.NAME else None
        self._name = preset
        self._peer = peer
        self._preset: Preset = find_preset(burst_gap.BASE if self.truth else preset)
        self._seed, self._process, self._faults = seed, process, faults or Faults()
        self._count = 0
        self._solved: dict[_Key, Ideal] = {}
        self._solved_bytes = 0
        noise = self._preset.noise
        z = stream(seed, process, "process").standard_normal(2)
        self._condition = Conditions(1 + noise.process_link * float(z[0]), 1 + noise.process_capacity * float(z[1]))

    @property
    def backend(self) -> str:
        """``sim:PRESET``."""
        return f"sim:{self._name}"

    @property
    def preset(self) -> Preset:
        """The parameters in use."""
        return self._preset

    def node(self) -> Node:
        """Describe the simulated node."""
        p, unusable = self._preset, self._faults.unusable or {}
        gpus = tuple(Gpu(i, p.gpu, p.smids, p.sm_clock_mhz) for i in range(p.gpus))
        pairs = tuple((a, b) for a in range(p.gpus) for b in range(p.gpus) if a != b and (a, b) not in unusable)
        if self._peer == "host":
            return Node(gpus, tuple((g, HOST) for g in range(p.gpus)), p.timer_tick_ns)
        reasons = {f"{a}>{b}": reason for (a, b), reason in unusable.items()}
        return Node(gpus, pairs, p.timer_tick_ns, p.line_rate_gb_per_s, reasons or None)

    def verify(self, source: int, destination: int) -> None:
        """Raise where stores of this pair hang or are lost (see `Faults`); a healthy pair returns at once.

        Raises
        ------
        PairError
            Naming pair, offset, expected and found.
        """
        self._check_pair(source, destination)
        raise_if_hanging(self._faults, source, destination)
        word = int(stream(self._seed, source, destination, "verify").integers(1 << 20))
        raise_if_dropped(self._faults, source, destination, 16 * word, 0xA5000000 | word, 0xDEADBEEF)

    def measure(self, executions: Sequence[Execution]) -> Iterator[Trace]:
        """Execute in order and yield one Trace each.

        Raises
        ------
        PairError
            An error in the middle of the run, or (`DeviceLostError`) an operation that never completes; Traces before it were yielded.
        UsageError
            More producers than SMs, a GPU that the node lacks, or warps that do not meet.
        """
        queue = iter(executions)
        while chunk := list(islice(queue, _CHUNK)):
            clocks = [self._faults.clock_factor(self._count + i) for i in range(len(chunk))]
            self._solve([(e.schedule, c) for e, c in zip(chunk, clocks, strict=True)])
            ideals = [self._solved[e.schedule.key(), c] for e, c in zip(chunk, clocks, strict=True)]
            for execution, clock, ideal in zip(chunk, clocks, ideals, strict=True):
                s = execution.schedule
                raise_if_hanging(self._faults, s.source, s.destination)
                raise_if_error_due(self._faults, self._count, s.source, s.destination)
                self._count += 1
                yield self._trace(execution, ideal, clock)

    def measure_scene(self, scene: Scene, repetitions: int) -> list[SceneTrace]:
        """Execute several schedules at once (`sim.scene`); the first repetition is marked ``warmup``.

        Raises
        ------
        UsageError
            The scene has company or tensor-core work, of which the simulator knows nothing, or SMs that the node lacks.
        PairError
            A pair that hangs or loses stores.
        """
        if scene.company or scene.gap_work != "idle" or self.truth is not None:
            raise UsageError(f"{self.backend} knows nothing of company or of work in the gaps", "use --backend cuda, or a plain pattern")
        seats(scene, self.node())
        for source, destination in scene.pairs():
            self.verify(source, destination)
        p, condition = self._preset, self._condition
        link = np.array([condition.link * self._faults.link_factor(s.source, s.destination) for s in scene.schedules])
        ideals = courses(p, scene.schedules, link, condition.capacity, p.sm_clock_mhz)
        found = []
        for i in range(repetitions):
            self._count += 1
            traces = [
                observe(p, s, ideal, stream(self._seed, self._process, "scene", self._count, j), 1.0)
                for j, (s, ideal) in enumerate(zip(scene.schedules, ideals, strict=True))
            ]
            marked = tuple(replace(t, status="warmup") if i == 0 else t for t in traces)
            found.append(SceneTrace(scene, marked, np.zeros((0, 64)), 0.0, np.zeros(len(scene.gpus())), np.zeros(len(traces))))
        return found

    def execute_tasks(self, schedules: Sequence[TaskSchedule], *, repetitions: int, compute: Compute) -> Iterator[TaskTrace]:
        """Execute TaskSchedules (`sim.tasks`): all once, then again; see `TaskDevice`. `compute` makes no difference here.

        Raises
        ------
        UsageError
            A preset or flavour that knows no tasks, SMs that the node lacks, or a GPU that it lacks.
        PairError
            A pair that hangs or loses stores.
        """
        if self.truth is not None:
            raise UsageError(f"{self.backend} knows no tasks", "--backend sim")
        for s in schedules:
            if s.flavour not in self.node().flavours:
                raise UsageError(f"{self.backend} knows no flavour {s.flavour}", f"one of: {', '.join(self.node().flavours)}")
            self.verify(s.source, s.destination)
        courses: dict[str, TaskCourse] = {}  # a replay asks for each schedule once a round: solved once, observed with noise of its own
        times: Counter[str] = Counter()
        for s in (*schedules,) * repetitions:
            key = s.key()
            if key not in courses:
                courses[key] = task_course(self._preset, s, replace(self._condition, link=self._link(s)))
            self._count += 1
            yield observe_tasks(self._preset, s, courses[key], stream(self._seed, self._process, key, times[key]))
            times[key] += 1

    def close(self) -> None:
        """Forget the solved courses; may be called any number of times."""
        self._solved, self._solved_bytes = {}, 0

    def _check_pair(self, source: int, destination: int) -> None:
        for gpu in (source, source if destination == HOST else destination):
            if not 0 <= gpu < self._preset.gpus:
                raise UsageError(f"there is no GPU {gpu} on {self.backend}", f"its GPUs are 0 to {self._preset.gpus - 1}")
        reason = (self._faults.unusable or {}).get((source, destination))
        if reason:
            raise PairError(f"pair {source}>{destination} cannot be used: {reason}", "choose another pair with --pairs")

    def _link(self, schedule: Schedule | TaskSchedule) -> float:
        return self._condition.link * self._faults.link_factor(schedule.source, schedule.destination)

    def _conditions(self, schedule: Schedule, clock: float) -> Conditions:
        link = self._link(schedule)
        if schedule.destination == HOST:
            link *= self._preset.host_gb_per_s / self._preset.link_gb_per_s
        return replace(self._condition, link=link, clock=clock)

    def _solve(self, wanted: list[tuple[Schedule, float]]) -> None:
        """Make sure that the courses of these schedules are in `_solved`; older ones give way when they fill the memory set aside."""
        if self._solved_bytes > _KEPT_BYTES:
            self._solved, self._solved_bytes = {}, 0
        by_condition: dict[tuple[int, int, float], dict[str, Schedule]] = {}
        for s, clock in wanted:
            if (s.key(), clock) not in self._solved:
                require_meeting(s)
                by_condition.setdefault((s.source, s.destination, clock), {})[s.key()] = s
        for (source, destination, clock), distinct in by_condition.items():
            self._check_pair(source, destination)
            some = list(distinct.values())
            conditions = self._conditions(some[0], clock)
            solved = [burst_gap.course(self.truth, s) for s in some] if self.truth else run(self._preset, some, conditions)
            for key, ideal in zip(distinct, solved, strict=True):
                self._solved[key, clock] = ideal
                self._solved_bytes += 4 * ideal.start.nbytes

    def _trace(self, execution: Execution, ideal: Ideal, clock: float) -> Trace:
        s = execution.schedule
        rng = stream(self._seed, self._process, s.key(), execution.repetition)
        trace = burst_gap.observe(self.truth, s, ideal, rng) if self.truth else observe(self._preset, s, ideal, rng, clock)
        if execution.timeline:
            trace = replace(trace, timeline_cycles=store_times(self._preset, s, self._conditions(s, clock)))
        if (s.source, s.destination) in self._faults.dropped:
            return replace(trace, status="corrupt", detail="the destination does not hold what was stored (simulated)")
        if execution.kind == "warmup":
            ramp = _WARMUP_CLOCK + (1 - _WARMUP_CLOCK) * float(rng.random())
            return replace(trace, status="warmup", detail="first executions after idle", sm_clock_mhz=round(trace.sm_clock_mhz * ramp, 3))
        if clock < 1.0:
            return replace(
                trace, status="throttled", detail=f"SM clock {trace.sm_clock_mhz:.0f} of {self._preset.sm_clock_mhz:.0f} MHz (simulated)"
            )
        return trace
