"""What executing tasks costs beside their work, as the replay measures it (`task_instrument`), and what one schedule pays of it.

The numbers stand in `model.json` under ``tasks``. A model without them predicts with those of the recorded node (`reference_costs`), and
the prediction says so (`notes_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.io.assets import asset_dir
from xstage_bench.io.json_file import read_json
from xstage_bench.machine.gpus import Default, kind_of
from xstage_bench.model.estimate import Estimate
from xstage_bench.schedule.tasks import TaskSchedule

#: Under results/, and in the wheel.
REFERENCE = "reference/task-costs.json"
#: Warps per role that the probe of `store_cycles.N` stores with.
STORE_WARPS = 4
#: What a role needs from the end of one of its tasks to the start of its next.
_AGAIN = "turn_cycles.single"
#: Not of the replay, which computes on what it has: by how much of its compute a kernel asks for operands before it needs them.
AHEAD = "operands_ahead_cycles"
#: Nor is this: warps that release what others have stored, so that these go on.
PUBLISHERS = "publishing_warps"
#: A read of the copy engine waits until all but this of its SM's stores has drained, and takes this where there are none. No verb measures
#: either: they were read off one recording, and hold behind bursts of up to 16 KiB an SM.
PASSED_BYTES = Default(
    name="bytes that a late operand passes",
    value=9000.0,
    low=6500.0,
    high=11000.0,
    unit="B",
    source="results/h200-x2/store-queue/store_queue.json: behind 16 KiB on 132 SMs 5 879 cycles, in which 7.3 kB drain; behind 8 and "
    "16 KiB on 66 and 132 SMs 6.5 to 10.9 kB pass, behind more 24 kB and more",
)
REACH_CYCLES = Default(
    name="cycles of a read from the second-level cache",
    value=514.0,
    low=514.0,
    high=714.0,
    unit="cycles",
    source="the same recording: 514 by a load, 714 by the copy engine",
)
LATE_OPERANDS = (PASSED_BYTES, REACH_CYCLES)
_STORE, _BOTH, _ONE = "store_cycles.", "drain_gb_per_s.both_ways", "drain_gb_per_s.one_way"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCosts:
    """Constants of one replay.

    Parameters
    ----------
    gpu : str
        Where they were measured.
    compute : str
        How compute was executed: ``mma`` or ``spin``.
    sm_clock_mhz : float or None
        The clock that held while schedules of it were executed: tensor-core work lowers it.
    instrument : dict of str to Estimate
        By the names of `task_instrument.constants`, in cycles of the SM clock but for the drain rates.
    total_error : Estimate
        Relative error, measured over predicted less one, of the total time of schedules that were replayed: `low` and `high` bound 90 % of
        them, `value` is its median.
    """

    gpu: str
    compute: str
    sm_clock_mhz: float | None
    instrument: dict[str, Estimate]
    total_error: Estimate = field(default_factory=lambda: Estimate.missing("no replays were compared", "total_ns"))


@dataclass(frozen=True, slots=True)
class Costs:
    """What one schedule pays, in SM cycles.

    Parameters
    ----------
    compute : float
        What a task's compute is longer by than asked.
    turn, again : float
        From one task's end of compute to the start of the producer's next, and from the end of a role's task to the start of its next.
    signal : float
        A signal with nothing outstanding.
    wait : float
        From an event's last signal to the start of a task that waits for it.
    fetch : bool
        Whether a role fetches its next task through the SM's memory pipeline, behind all that the SM has outstanding: the replay does.
    stores, store_cycles : tuple of float
        Warp-stores per warp, ascending, and what issuing them costs one SM alone with `STORE_WARPS` warps; empty: the issue law holds.
    link : float
        Factor on the link's rate.
    ahead : float
        By how much of its compute a task's operands are asked for before they are needed; 0: it needs none from memory.
    elsewhere : bool
        Whether a signal's release is executed by another warp, so that the role goes on at once.
    """

    compute: float = 0.0
    turn: float = 0.0
    again: float = 0.0
    signal: float = 0.0
    wait: float = 0.0
    fetch: bool = False
    stores: tuple[float, ...] = ()
    store_cycles: tuple[float, ...] = ()
    link: float = 1.0
    ahead: float = 0.0
    elsewhere: bool = False


def costs_of(costs: TaskCosts, schedule: TaskSchedule) -> Costs:
    """Return what a schedule's form, publishing and directions call for. A constant that was not measured counts as nothing.

    Notes
    -----
    What a role needs from the end of one of its tasks to the next is what ``single`` shows between any two; in ``ping_pong`` only the turn
    at the tensor cores is left of it, unless the role has been late. An event is as late as where every SM signals and waits, which is
    what waves and blocks do; a replay without that probe has two SMs that wait for each other. Where it is known what a role needs to get
    to its next task, it fetches the task as the replay does.
    """
    known = {name: e.value for name, e in costs.instrument.items() if e.value is not None}
    sizes = sorted((float(name.removeprefix(_STORE)), value) for name, value in known.items() if name.startswith(_STORE))
    both = known.get(_BOTH, 1.0) / known.get(_ONE, 1.0) if _BOTH in known and _ONE in known else 1.0
    return Costs(
        compute=known.get(f"compute_excess_cycles.{schedule.form}", 0.0),
        turn=known.get(f"turn_cycles.{schedule.form}", 0.0),
        again=known.get(_AGAIN, 0.0),
        signal=known.get(f"signal_cycles.{schedule.publish}", 0.0),
        wait=known.get(f"event_of_all_cycles.{schedule.publish}", known.get(f"event_cycles.{schedule.publish}", 0.0)),
        fetch=_AGAIN in known,
        stores=tuple(n for n, _ in sizes),
        store_cycles=tuple(cycles for _, cycles in sizes),
        link=min(both, 1.0) if schedule.both_ways else 1.0,
        ahead=known.get(AHEAD, 0.0),
        elsewhere=known.get(PUBLISHERS, 0.0) > 0,
    )


def costs_of_replay(document: Mapping[str, Any]) -> TaskCosts:
    """Take the constants out of a replay document.

    Raises
    ------
    DataError
        It holds none.
    """
    try:
        clocks = [row["sm_clock_mhz"]["value"] for row in document["rows"] if row["sm_clock_mhz"]["value"] is not None]
        return TaskCosts(
            gpu=str(document["gpus"][0]["name"]),
            compute=str(document["compute"]),
            sm_clock_mhz=float(np.median(clocks)) if clocks else None,
            instrument=msgspec.convert(document["instrument"], dict[str, Estimate]),
        )
    except (KeyError, IndexError, TypeError, msgspec.ValidationError) as error:
        raise DataError(
            f"the replay holds no constants of its instrument ({error})", "xstage run --schedule TASKS --compute mma"
        ) from error


def notes_of(costs: TaskCosts, here: str, *, own: bool) -> list[str]:
    """Say which of the costs are of another node, and which rest on defaults that no verb measures.

    Parameters
    ----------
    costs : TaskCosts
    here : str
        Name of the GPU that is predicted.
    own : bool
        Whether the costs stand in the GPU's own model.
    """
    notes = []
    elsewhere = kind_of(costs.gpu) != kind_of(here)
    if elsewhere or not own:
        kinds = ", ".join(dict.fromkeys(name.partition(".")[0] for name in sorted(costs.instrument)))
        this = f"this is {here}" if elsewhere else f"this is another {here}"
        what = f"what a task costs beside its work ({kinds}, and the interval of the total)"
        notes.append(f"{what} was measured on {costs.gpu}, not on this node; {this}")
    if AHEAD in costs.instrument:
        late = ", ".join(d.words() for d in LATE_OPERANDS)
        notes.append(f"late operands by defaults measured on {LATE_OPERANDS[0].gpu}, this is {here}: {late}")
    return notes


def find_costs(known: Sequence[TaskCosts], compute: str) -> TaskCosts | None:
    """Return the constants of one way to compute, or None."""
    return next((c for c in known if c.compute == compute), None)


@cache
def reference_costs(compute: str = "mma") -> TaskCosts:
    """Return the constants measured on the recorded node, which ship with the package."""
    found = find_costs(read_json(reference_path(), list[TaskCosts]), compute)
    assert found is not None, compute
    return found


def reference_path() -> Path:
    """Where the constants of the recorded node are."""
    return asset_dir("results") / REFERENCE
