"""Execute schedules of the replay set and their advised forms on the simulator: is the advice any good there, and is the gain as predicted?

python tests/claims/advice_simulated.py results/h200-x2/profile/model.json 33

The first so many, in an order drawn with seed 1, of those that have at most 4500 tasks and for which a change is advised. SIMULATED: the
simulator shares no event loop with the predictor, but it is no hardware.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from replay_set import replay_schedules

from xstage_bench.device.backend import open_device, resolve_backend
from xstage_bench.model.advise.choose import advise_tasks
from xstage_bench.model.document import load_model
from xstage_bench.schedule.device import TaskDevice

MOST_TASKS = 4500
REPETITIONS = 2


def main(model: str, count: str) -> None:
    """Print a line for each, and the summary."""
    loaded, device = load_model(Path(model)), open_device(resolve_backend("sim:h200-nv18-x2", "gpu"), seed=0, process=0)
    if not isinstance(device, TaskDevice):
        raise TypeError("the simulator executes tasks")
    schedules, gains = replay_schedules(), []
    for i in np.random.default_rng(1).permutation(len(schedules)):
        if len(gains) == int(count):
            break
        advice = advise_tasks(loaded, schedules[i]) if schedules[i].task_count <= MOST_TASKS else None
        if advice is None or not advice.helps:
            continue
        both = [schedules[i], advice.schedule]
        total = np.array([t.total_ns for t in device.execute_tasks(both, repetitions=REPETITIONS, compute="spin")])
        gains.append((float(total[0::2].mean() / total[1::2].mean()), advice.gain))
        print(f"{schedules[i].name:55s} gain predicted {advice.gain:.3f}, simulated {gains[-1][0]:.3f}", flush=True)
    simulated, predicted = np.array(gains).T
    apart = np.abs(simulated - predicted)
    slower, far = int((simulated < 0.99).sum()), f"gain apart by {np.median(apart):.3f} median, {apart.max():.3f} at most"
    print(f"SIMULATED, n = {len(gains)}: {slower} slower by more than 1 %; {far}")


if __name__ == "__main__":
    main(*sys.argv[1:])
