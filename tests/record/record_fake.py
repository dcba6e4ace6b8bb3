"""A deterministic device: what it measures follows from (schedule, repetition) alone, so a record can be checked value for value."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from xstage_bench.record.manifest import Manifest
from xstage_bench.record.writer import RunWriter
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution, Gpu, Node
from xstage_bench.schedule.trace import Trace

SMIDS = tuple(range(0, 48, 2))
NODE = Node((Gpu(0, "Fake", SMIDS, 1980.0), Gpu(1, "Fake", SMIDS, 1980.0)), ((0, 1), (1, 0)), 32.0, 100.0, {"1>2": "no such link"})


def make_schedules(count: int = 8) -> list[Schedule]:
    out = []
    for i in range(count):
        start = ("isolated", "free", "timed")[i % 3]
        bursts = tuple(Burst(512 * (i % 4 + 1) * (2 + i + j), gap_cycles=100 * j, start_ns=5000 * j) for j in range(1 + i % 4))
        producers: int | tuple[int, ...] = (0, 4, 46) if i % 5 == 4 else 1 + i % 9
        out.append(Schedule(bursts, producers, warps=i % 4 + 1, source=i % 2, destination=1 - i % 2 if i % 7 else i % 2, start=start))
    return out


def make_trace(execution: Execution) -> Trace:
    s = execution.schedule
    rng = np.random.default_rng(zlib.crc32(f"{s.key()} {execution.repetition} {execution.kind}".encode()))
    shape = (len(s.bursts), s.producer_count)
    issue = rng.integers(20, 1 << 20, shape).astype(float)
    start = 32.0 * rng.integers(0, 1 << 18, shape)
    gap = rng.integers(0, 9000, shape).astype(float)
    gap[0] = np.nan
    drain = rng.integers(1000, 20000, shape).astype(float)
    if s.start != "isolated":
        drain[:-1] = np.nan
    status = "warmup" if execution.kind == "warmup" else "throttled" if execution.repetition % 5 == 4 else "ok"
    return Trace(
        schedule=s,
        smids=s.smids(SMIDS),
        issue_cycles=issue,
        gap_cycles=gap if s.start != "isolated" else np.full(shape, np.nan),
        start_ns=start,
        end_ns=start + 32.0 * (np.ceil(issue / 1980.0 * 1e3 / 32.0) + rng.integers(1, 1 << 12, shape)),
        drain_cycles=drain,
        sm_clock_mhz=1980.0 - rng.integers(0, 1024) / 1024,
        status=status,
        detail='clock fell, said "1900",\nthen rose' if status == "throttled" else "",
        timeline_cycles=np.cumsum(rng.integers(20, 60, (s.producer_count, s.warps, 6)), axis=2).astype(float)
        if execution.timeline
        else None,
    )


class FakeDevice:
    backend = "fake"

    def node(self) -> Node:
        return NODE

    def measure(self, executions: Sequence[Execution]) -> Iterator[Trace]:
        return map(make_trace, executions)


def make_manifest(**changes: object) -> Manifest:
    return Manifest(**{"backend": "fake", "simulated": True, "node": NODE, "seed": 7, "created": "2026-01-02T03:04:05Z", **changes})  # type: ignore[arg-type]


def make_plan(schedules: Sequence[Schedule], processes: int = 3, repetitions: int = 2) -> list[tuple[int, int, Execution]]:
    """(process, order, execution); repetitions are counted over all processes, each process warms up first."""
    plan, order = [], 0
    for process in range(processes):
        for execution in (
            Execution(schedules[0], process, kind="warmup"),
            *(Execution(s, process * repetitions + r) for r in range(repetitions) for s in schedules),
        ):
            plan.append((process, order, execution))
            order += 1
    return plan


def write_plan(writer: RunWriter, plan: Sequence[tuple[int, int, Execution]], *, flush_every: int = 7) -> None:
    """Write what `writer.done` does not hold yet."""
    for i, (process, order, execution) in enumerate(plan):
        if execution.kind == "measure" and (execution.schedule.key(), process, execution.repetition) in writer.done:
            continue
        writer.write(
            "fake", process, order, [execution], list(FakeDevice().measure([execution])), keep_producers=execution.repetition % 2 == 0
        )
        if i % flush_every == flush_every - 1:
            writer.flush()


def make_run(folder: Path, schedules: Sequence[Schedule] | None = None, *, finish: bool = True) -> list[tuple[int, int, Execution]]:
    schedules = make_schedules() if schedules is None else schedules
    plan = make_plan(schedules)
    with RunWriter(folder, make_manifest()) as writer:
        write_plan(writer, plan)
        exemplar = Execution(schedules[1], 99, timeline=True)
        writer.write("fake", 0, 1000, [exemplar], [make_trace(exemplar)], keep_producers=True)
        if finish:
            writer.finish(wall_s=1.5)
    return plan
