"""Measure scenes: fresh processes, random order, every pair verified before it is timed; one document comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

import numpy as np

from xstage_bench.device import Node, kernels_of
from xstage_bench.device.backend import BackendChoice, open_device
from xstage_bench.device.cuda.identity import Kernel, merged, plain
from xstage_bench.environment import link_error_deltas, snapshot
from xstage_bench.errors import PairError, UsageError
from xstage_bench.patterns import usable
from xstage_bench.scene import Scene, SceneTrace
from xstage_bench.scene_summary import Measured, summarise

PROCESSES, BLOCKS = 3, 2


@runtime_checkable
class SceneDevice(Protocol):
    """A device that can execute scenes: ``cuda`` and ``sim``; a replay holds none."""

    @property
    def backend(self) -> str:
        """As `Device.backend`."""
        ...

    def node(self) -> Node:
        """As `Device.node`."""
        ...

    def verify(self, source: int, destination: int) -> None:
        """As `Device.verify`."""
        ...

    def measure_scene(self, scene: Scene, repetitions: int) -> list[SceneTrace]:
        """Execute a scene; the first repetition is marked ``warmup``."""
        ...

    def close(self) -> None:
        """As `Device.close`."""
        ...


def measure_scenes(
    choice: BackendChoice,
    make: Callable[[Node], Sequence[Scene]],
    *,
    repetitions: int = 24,
    processes: int = PROCESSES,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure every scene that `make` gives for the node.

    Parameters
    ----------
    choice : BackendChoice
    make : callable
        ``Node -> sequence of Scene``.
    repetitions : int
        Of each scene, over all processes; each block of them begins with one more that is marked as warm-up.
    processes : int
        Fresh processes with their own allocations.
    seed : int
        Of the order.
    say : callable
        Told which process is under way.

    Returns
    -------
    dict
        Plain data for a JSON file: `rows` has one entry per scene, `waived` the pairs that could not be reached and
        `failed` those that failed, with the reason.

    Raises
    ------
    UsageError
        The backend has no scenes, or none of the pairs can be reached.
    """
    before = snapshot()
    found: dict[int, list[Measured]] = {}
    scenes: list[Scene] = []
    waived: dict[str, str] = {}
    failed: dict[str, str] = {}
    facts: dict[str, Any] = {}
    kernels: list[Kernel] = []
    per_block = max(1, -(-repetitions // (processes * BLOCKS)))
    for process in range(processes):
        say(f"process {process + 1} of {processes}")
        device = open_device(choice, seed=seed, process=process)
        try:
            if not isinstance(device, SceneDevice):
                raise UsageError(f"backend {choice.spec} cannot execute scenes", "use --backend cuda or sim")
            node = device.node()
            if not process:
                for scene in make(node):
                    left, why = usable(scene, node)
                    waived |= why
                    scenes.append(left)
                facts = node_facts(node, device.backend)
            _verify(device, scenes, failed)
            jobs = [i for i in range(len(scenes)) for _ in range(BLOCKS)]
            for i in np.random.default_rng([seed, process]).permutation(jobs):
                if not any(f"{a}>{b}" in failed for a, b in scenes[i].pairs()):
                    _one(device, scenes[i], per_block + 1, process, found.setdefault(int(i), []), failed)
        finally:
            kernels = merged(kernels, kernels_of(device))
            device.close()
    after = snapshot()
    return {
        "schema_version": 1,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "simulated": choice.simulated,
        **facts,
        "kernels": plain(kernels),
        "driver": (before.get("nvml") or {}).get("driver"),
        "processes": processes,
        "repetitions": per_block * BLOCKS * processes,
        "seed": seed,
        "link_error_deltas": link_error_deltas(before, after),
        "waived": waived,
        "failed": failed,
        "rows": [summarise(found[i]) for i in sorted(found)],
    }


def _verify(device: SceneDevice, scenes: Sequence[Scene], failed: dict[str, str]) -> None:
    for a, b in dict.fromkeys((s.source, s.destination) for scene in scenes for s in scene.schedules):
        if f"{a}>{b}" not in failed:
            try:
                device.verify(a, b)
            except PairError as error:
                failed[f"{a}>{b}"] = error.message


def _one(device: SceneDevice, scene: Scene, count: int, process: int, found: list[Measured], failed: dict[str, str]) -> None:
    try:
        traces = device.measure_scene(scene, count)
    except PairError as error:
        failed |= {f"{a}>{b}": error.message for a, b in scene.pairs()}
        return
    found += [Measured(process, t) for t in traces]
    for bad in (t for st in traces for t in st.traces if t.status in ("corrupt", "timeout")):
        failed.setdefault(f"{bad.schedule.source}>{bad.schedule.destination}", bad.detail)


def node_facts(node: Node, backend: str) -> dict[str, Any]:
    """Return what a document says about the node that it was measured on."""
    from xstage_bench.device.cuda.compile import sources_hash

    return {
        "backend": backend,
        "cuda_sources": sources_hash() if backend == "cuda" else None,
        "gpus": [{"index": g.index, "name": g.name, "sms": g.sm_count, "uuid": g.uuid, "pci_address": g.pci_address} for g in node.gpus],
        "line_rate_gb_per_s": node.line_rate_gb_per_s,
        "timer_tick_ns": node.timer_tick_ns,
    }
