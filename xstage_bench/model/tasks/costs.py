"""What executing tasks costs beside their work: constants of the instrument and of an SM, measured by little probes of the replay.

They stand in `model.json` under ``tasks`` once a replay has measured them (docs/predict.md). A model without them predicts with those of
the recorded node that `reference_costs` returns, and the prediction says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache

from xstage_bench.assets import asset_dir
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.tasks.work import Costs
from xstage_bench.record.json_file import read_json
from xstage_bench.task_schedule import TaskSchedule

#: Under results/, and in the wheel.
REFERENCE = "reference/task-costs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCosts:
    """Constants of executing tasks, in cycles of the SM clock unless said otherwise; `null` estimates count as nothing.

    Parameters
    ----------
    gpu, compute : str
        Where they were measured, and how compute was executed: ``mma`` or ``spin``.
    sm_clock_mhz : float or None
        The clock that held while tasks computed: tensor-core work lowers it.
    compute_cycles : Estimate
        What a task's compute is longer by than asked.
    turn_cycles : Estimate
        From one task's end of compute to the start of the next one of the other role (``ping_pong``).
    again_cycles : Estimate
        From the end of a role's task to the start of its next one.
    store_cycles : Estimate
        What issuing a task's stores costs beside the issue law.
    wait_cycles : Estimate
        From the last signal of an event to the start of a task that waits for it.
    relaxed_cycles, release_gpu_cycles, release_sys_cycles : Estimate
        A signal with nothing outstanding.
    both_ways : Estimate
        Link rate of one direction while the other is as busy, over its rate alone; without unit.
    total_error : Estimate
        Relative error of the predicted total time of schedules that were replayed: `low` and `high` bound 90 % of them, `value` is the
        median of the error with its sign.
    """

    gpu: str
    compute: str
    sm_clock_mhz: float | None
    compute_cycles: Estimate
    turn_cycles: Estimate
    again_cycles: Estimate
    store_cycles: Estimate
    wait_cycles: Estimate
    relaxed_cycles: Estimate
    release_gpu_cycles: Estimate
    release_sys_cycles: Estimate
    both_ways: Estimate
    total_error: Estimate
    notes: list[str] = field(default_factory=list)

    def of(self, schedule: TaskSchedule) -> Costs:
        """Return the values that one schedule's form, publishing and directions call for."""
        signal = {"relaxed": self.relaxed_cycles, "release.gpu": self.release_gpu_cycles, "release.sys": self.release_sys_cycles}
        return Costs(
            compute=_value(self.compute_cycles),
            turn=_value(self.turn_cycles),
            again=_value(self.again_cycles),
            store=_value(self.store_cycles),
            signal=_value(signal[schedule.publish]),
            wait=_value(self.wait_cycles),
            link=_value(self.both_ways, 1.0) if schedule.both_ways else 1.0,
        )

    def missing(self) -> list[str]:
        """Names of the constants without a value."""
        found = ((f.name, getattr(self, f.name)) for f in fields(self))
        return [name for name, e in found if isinstance(e, Estimate) and e.value is None]


def _value(e: Estimate, otherwise: float = 0.0) -> float:
    return otherwise if e.value is None else e.value


@cache
def reference_costs() -> TaskCosts:
    """Return the constants measured on the recorded node, which ship with the package."""
    return read_json(asset_dir("results") / REFERENCE, TaskCosts)
