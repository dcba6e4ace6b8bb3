"""The skeleton of a case of the suite: its tiles as a TaskSchedule that the replay executes, and its gain beside the kernel's.

A skeleton has the tiles, bytes and dependencies of a layer and none of the kernel's other troubles: what an order can gain by itself. Tile
times are those of the recorded GPU's rate (`rates.named_machine`), tiles are walked block by block, and both GPUs execute rank 0's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from xstage_bench.kernels.moe.build import COMBINE_BYTES
from xstage_bench.kernels.moe.suite import MoeCase
from xstage_bench.schedule.tasks import TaskSchedule
from xstage_bench.workloads.moe import MAX_EP, moe_tasks
from xstage_bench.workloads.shapes import moe_shape

#: Linear-1 tiles per SM by which Linear-1 is ahead; the better one is the skeleton's interleaved order.
LEADS = (1.0, 2.0)
WAVE = "wave"
#: What the kernel should reach of a skeleton's gain.
ENOUGH = 0.9


def skeleton_schedules(cases: Iterable[MoeCase], combines: Sequence[str]) -> Iterator[TaskSchedule]:
    """Return Expert-Wave order, as the public kernel picks its waves, and each lead, of every case and width of a result row."""
    for case in cases:
        for combine in combines:
            options: dict[str, Any] = {"tokens_per_rank": case.tokens, "ep": case.ep, "dtype": case.dtype, "routing": case.routing}
            options["row_bytes"] = COMBINE_BYTES[combine] * moe_shape(case.shape).hidden
            head = skeleton_name(case.shape, case.dtype, case.tokens, case.routing, combine, case.ep)
            yield moe_tasks(case.shape, **options, order="wave", name=f"{head}-{WAVE}")
            for lead in LEADS:
                yield moe_tasks(case.shape, **options, order="interleaved", lead=lead, name=f"{head}-{_lead(lead)}")


def skeleton_name(shape: str, dtype: str, tokens: int, routing: str, combine: str, ep: int) -> str:
    """Return the head of a skeleton's name; where tools/skeleton_tables.py has replayed the same (balanced, bf16 rows), its name there."""
    parts = [shape, dtype, str(tokens)]
    parts += [] if routing == "balanced" else [routing]
    parts += [] if combine == "bf16" else [combine]
    return "-".join(parts + ([] if ep == MAX_EP else [f"ep{ep}"]))


def with_skeletons(document: Mapping[str, Any], replays: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the suite's document with the replayed skeleton beside each row, of the first replay that has its case.

    Each row has ``skeleton_gain`` (time in waves over that of the better lead; None with ``skeleton_reason``) and ``skeleton``, what it
    stands on.
    """
    known = [(replay, {row["schedule"]: row for row in replay["rows"]}) for replay in replays]
    return {**document, "rows": [{**row, **_of_row(row, known)} for row in document["rows"]]}


def _of_row(row: Mapping[str, Any], known: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    head = skeleton_name(row["shape"], row["dtype"], row["tokens_per_rank"], row["routing"], row["combine"], row["ep"])
    for replay, found in known:
        us = {end: _total_us(found.get(f"{head}-{end}")) for end in (WAVE, *map(_lead, LEADS))}
        valid = {end: value for end, value in us.items() if value is not None}
        if len(valid) < len(us):
            continue
        best = min((end for end in valid if end != WAVE), key=lambda end: valid[end])
        facts = {"wave_us": valid[WAVE], "interleaved_us": valid[best], "order": best, "compute": replay["compute"]}
        facts |= {name: replay[name] for name in ("created", "processes", "repetitions")}
        facts["no_store_us"] = {end: found[f"{head}-{end}"]["no_store_us"]["value"] for end in (WAVE, best)}
        return {"skeleton_gain": valid[WAVE] / valid[best], "skeleton": facts, "skeleton_reason": None}
    return {"skeleton_gain": None, "skeleton": None, "skeleton_reason": f"{head} was not replayed in waves and with leads of 1 and 2"}


def _lead(lead: float) -> str:
    return f"lead{lead:g}"


def _total_us(row: Mapping[str, Any] | None) -> float | None:
    return None if row is None else row["total_us"]["value"]
