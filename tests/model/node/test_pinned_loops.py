"""Both event loops, compiled and not, give the numbers that were written down before their physics got one source.

The numbers are sums over the bursts of a schedule, or over its tasks. With tests/ on the path,
`python tests/model/node/test_pinned_loops.py` writes them anew.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_worlds import NODE, drawn

from xstage_bench.model.document import SCHEMA_VERSION, Model, PairModel
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.node.entry import NodeBasis
from xstage_bench.model.node.issue import IssueLaw
from xstage_bench.model.node.parameters import PARAMETERS, NodeModel
from xstage_bench.model.node.predict import predict_node
from xstage_bench.model.tasks.costs import AHEAD, PUBLISHERS, TaskCosts
from xstage_bench.model.tasks.predict import predict_tasks
from xstage_bench.schedule.tasks import FORMS, NONE, PUBLISHES, TaskSchedule

PINS = Path(__file__).with_name("pinned_loops.json")
QUEUED = IssueLaw(unroll=1.0, queue_operations=(4.0, 6.0, 8.0, 6.0), engine_operations=(4.0, 6.0, 8.0, 6.0), engine_cycles=20.0)
NODES = (
    NODE,
    replace(NODE, link_buffer_bytes=0.0, link_gb_per_s=120.0),
    replace(NODE, service_spread=0.0, credit_cycles=0.0, unit_capacity_bytes=0.0),
    replace(NODE, issue=IssueLaw(tail_unheld=1.0)),
    replace(NODE, issue=QUEUED),
)
BURSTS = ("issue_cycles", "issue_max_cycles", "start_ns", "end_ns", "spread_ns", "backlog_bytes", "visible_ns")
TASKS = ("start_ns", "compute_end_ns", "store_end_ns", "signal_end_ns", "backlog_bytes", "visible_ns", "t0_ns")
SMALL = 20


def task_schedules(count: int) -> list[TaskSchedule]:
    """Rounds of quiet and storing tasks; the storing ones of a round wait for an event that its quiet ones signal, or for nothing."""
    rng = np.random.default_rng(43)
    out = []
    for i in range(count):
        k, rounds = int(rng.integers(1, 133)), int(rng.integers(1, 8))
        producer = np.repeat(np.arange(k), 2 * rounds)
        turn = np.tile(np.arange(2 * rounds), k)
        storing, event = turn % 2 == 1, turn // 2
        warps = int(rng.integers(1, 9))
        size = np.where(storing | (rng.random(turn.size) < 0.2), rng.integers(0, 40, turn.size) * warps * 512, 0)
        waits = rng.random(turn.size) < 0.8
        out.append(
            TaskSchedule(
                producers=k,
                producer=producer,
                compute_cycles=rng.integers(0, int(rng.choice([500, 5_000, 40_000])), turn.size),
                bytes=size,
                remote_bytes=np.where(rng.random(turn.size) < 0.9, size, size // 1024 * 512),
                waits_for=np.where(storing & waits, event, NONE),
                signals=np.where(storing, NONE, event),
                warps=warps,
                form=FORMS[i % len(FORMS)],  # type: ignore[arg-type]
                publish=PUBLISHES[i % len(PUBLISHES)],  # type: ignore[arg-type]
                both_ways=bool(i % 5 == 0),
            )
        )
    return out


def costs(index: int) -> TaskCosts:
    """Of every kind, with operands that come late and warps that release elsewhere, in turn."""
    known = {f"turn_cycles.{form}": 40.0 for form in FORMS} | {"store_cycles.1": 300.0, "store_cycles.8": 600.0}
    known |= {f"event_cycles.{p}": 900.0 for p in PUBLISHES}
    known |= {f"signal_cycles.{p}": cycles for p, cycles in zip(PUBLISHES, (20.0, 800.0, 2400.0), strict=True)}
    known |= {"drain_gb_per_s.one_way": 370.0, "drain_gb_per_s.both_ways": 355.0}
    known |= {AHEAD: 3000.0} if index % 3 == 1 else {}
    known |= {PUBLISHERS: 1.0} if index % 4 == 2 else {}
    if index % 6 == 5:
        known.pop("turn_cycles.single")  # nothing is fetched
    found = {name: Estimate(value=value, standard_error=None, low=None, high=None) for name, value in known.items()}
    return TaskCosts(gpu="none", compute="spin", sm_clock_mhz=None, instrument=found)


def document(node: NodeModel) -> Model:
    used = dict(zip(PARAMETERS, node.values().tolist(), strict=True))
    basis = NodeBasis(used=used, placement=node.placement, sm_clock_mhz=node.sm_clock_mhz, spread=None, issue=node.issue, n_schedules=0)
    pair = PairModel(pair="0>1", flavour="st.v4", layout="contiguous", burst_gap=[], node={}, node_basis=basis)
    return Model(schema_version=SCHEMA_VERSION, backend="none", gpu="none", sm_clock_mhz=node.sm_clock_mhz, pairs=[pair])


def burst_numbers(count: int, compiled: bool) -> list[list[float]]:
    """One row for each schedule: sums over its bursts of `BURSTS`."""
    rows: list[list[float]] = []
    every = drawn(count, 41)
    for i, node in enumerate(NODES):
        mine = every[i :: len(NODES)]
        found = predict_node(node, mine, compiled=compiled, exact=i % 2 == 0, sm_clock_mhz=(1980.0, 1400.0)[i % 2])
        for a, b in zip(found.first[:-1], found.first[1:], strict=True):
            rows.append([float(getattr(found, name)[a:b].sum()) for name in BURSTS])
    return rows


def task_numbers(count: int, compiled: bool) -> list[list[float]]:
    """One row for each schedule: sums over its tasks of `TASKS`, and the totals."""
    models = [document(node) for node in NODES]
    rows = []
    for i, s in enumerate(task_schedules(count)):
        found = predict_tasks(models[i % len(NODES)], s, costs=costs(i), compiled=compiled)
        rows.append([*(float(np.nansum(getattr(found, n))) for n in TASKS), found.total_ns, found.without_stores_ns, found.all_visible_ns])
    return rows


def numbers(count: int, compiled: bool) -> dict[str, Any]:
    return {"bursts": burst_numbers(count, compiled), "tasks": task_numbers(count, compiled)}


@pytest.mark.parametrize("compiled", [False, True])
def test_the_loops_give_the_numbers_that_were_written_down(compiled: bool) -> None:
    if compiled:
        pytest.importorskip("numba", exc_type=ImportError)
    pinned, found = json.loads(PINS.read_text()), numbers(SMALL, compiled)
    for what in ("bursts", "tasks"):
        assert len(found[what]) == SMALL
        for row, pin in zip(found[what], pinned[what], strict=True):
            # Sums of start and drain times of some thousand cycles: the compiled loop adds in another order.
            assert row == pytest.approx(pin, rel=1e-9, abs=1e-6)


if __name__ == "__main__":
    PINS.write_text(json.dumps({k: [[float(f"{x:.13g}") for x in row] for row in v] for k, v in numbers(SMALL, False).items()}) + "\n")
