"""Scenes: measured in random order, every pair verified before it is timed; one document comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from xstage_bench.device.backend import BackendChoice, opener
from xstage_bench.errors import PairError
from xstage_bench.measure.rounds import Work
from xstage_bench.measure.scene_summary import SceneRepetition, summarise
from xstage_bench.measure.survey import Described, take
from xstage_bench.schedule.device import Node
from xstage_bench.schedule.patterns import usable
from xstage_bench.schedule.scenes import Scene, SceneTrace

PROCESSES, BLOCKS = 3, 2


@runtime_checkable
class SceneDevice(Described, Protocol):
    """A device that can execute scenes: ``cuda`` and ``sim``; a replay holds none."""

    def verify(self, source: int, destination: int) -> None:
        """As `Device.verify`."""
        ...

    def measure_scene(self, scene: Scene, repetitions: int) -> list[SceneTrace]:
        """Execute a scene; the first repetition is marked ``warmup``."""
        ...


def measure_scenes(
    choice: BackendChoice,
    make: Callable[[Node], Sequence[Scene]],
    *,
    repetitions: int = 24,
    processes: int = PROCESSES,
    seed: int = 0,
    **kept: Any,
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
    **kept
        ``argv``, ``progress`` and ``keep`` of `survey.take`.

    Returns
    -------
    dict
        Plain data for a JSON file: `rows` has one entry per scene, `waived` the pairs that could not be reached.

    Raises
    ------
    UsageError
        The backend has no scenes, or none of the pairs can be reached.
    """
    found: dict[int, list[SceneRepetition]] = {}
    scenes: list[Scene] = []
    waived: dict[str, str] = {}
    per_block = max(1, -(-repetitions // (processes * BLOCKS)))

    def work(device: SceneDevice, process: int) -> Iterator[Work]:
        if not process:
            node = device.node()
            for scene in make(node):
                left, why = usable(scene, node)
                waived.update(why)
                scenes.append(left)
        for pair in dict.fromkeys((s.source, s.destination) for scene in scenes for s in scene.schedules):
            yield Work((pair,), lambda: iter(()), device.verify)
        jobs = [i for i in range(len(scenes)) for _ in range(BLOCKS)]
        for i in np.random.default_rng([seed, process]).permutation(jobs):
            yield Work(tuple(scenes[i].pairs()), partial(execute, device, process, int(i)))

    def execute(device: SceneDevice, process: int, which: int) -> Iterator[int]:
        traces = device.measure_scene(scenes[which], per_block + 1)
        found.setdefault(which, []).extend(SceneRepetition(process, t) for t in traces)
        bad = [t for st in traces for t in st.traces if t.status in ("corrupt", "timeout")]
        if bad:
            raise PairError(bad[0].detail, pairs=[(t.schedule.source, t.schedule.destination) for t in bad])
        yield per_block

    def body(node: Node) -> dict[str, Any]:
        count = per_block * BLOCKS * processes
        return {"repetitions": count, "waived": waived, "rows": [summarise(found[i]) for i in sorted(found)]}

    opened = opener(choice, SceneDevice, "execute scenes", seed=seed)  # type: ignore[type-abstract]
    return take("scenes", opened, work, body, processes=processes, simulated=choice.simulated, seed=seed, **kept)
