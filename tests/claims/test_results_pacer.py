"""The recorded measurements of the pacer and of stamps: the figures of results/h200-x2/pacer and docs/own-kernel.md are theirs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from xstage_bench.measure.stamps.bursts import COMPUTE, parts_of
from xstage_bench.measure.stamps.layout import read_stamps
from xstage_bench.measure.stamps.record import read_traces
from xstage_bench.measure.stamps.tasks import tasks_of
from xstage_bench.model.document import load_model
from xstage_bench.model.predict import predict
from xstage_bench.model.tasks.costs import PASSED_BYTES, REACH_CYCLES
from xstage_bench.schedule.bursts import Burst, Schedule

ROOT = Path(__file__).parents[2]
PASSED, REACH = PASSED_BYTES.value, REACH_CYCLES.value
FOLDER = ROOT / "results" / "h200-x2" / "2026-11-29-pacer"
PACER = (ROOT / "docs" / "pacer.md").read_text()


def summary() -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((FOLDER / "summary.json").read_text())
    return found


def test_accuracies_of_the_page() -> None:
    recorded = {(r["start"], r["settle"]): r for r in summary()["recorded"]}
    for start in ("isolated", "timed", "free"):
        plain, settled = (recorded[start, x] for x in (False, True))
        numbers = [plain["balanced_accuracy"], *(settled[n] for n in ("balanced_accuracy", "right_of_stalled", "right_of_free"))]
        assert f"| {start} | " + " | ".join(f"{100 * float(str(n)):.1f} %" for n in numbers) + " |" in PACER
    for row in summary()["device"]:
        if row["asked"] == "from stamps":
            assert f"{100 * float(str(row['balanced_accuracy'])):.1f} % |" in PACER


def test_the_pacer_is_never_slower_than_the_fixed_order_of_its_depth() -> None:
    rows = summary()["choice"]
    assert len(rows) == 48
    ratio = np.array([[float(str(r[f"paced {n}"])) / float(str(r[f"fixed {n}"])) for n in (4, 8, 16)] for r in rows])
    assert ratio.max() <= 1.0005
    below = np.array([float(str(r["load"])) < 1 for r in rows])
    assert np.exp(np.log(ratio[below, 1]).mean()) < 0.885
    spin = {(r["bursts"], r["load"]): r for r in rows if r["work"] == "spin"}
    for kind, load in (("even 16 KB", 0.95), ("even 32 KB", 1.4), ("uneven 32 KB", 0.95)):
        row = spin[kind, load]
        cells = [f"{row[f'fixed {n}']:.3f} / {row[f'paced {n}']:.3f}" for n in (4, 8, 16)]
        assert " | ".join([f"{row['fixed 1']:.3f}", *cells]) in PACER


def queue_rows(sms: int, stores: int, by: str = "st.v4") -> dict[str, dict[str, float]]:
    rows = json.loads((FOLDER / "store_queue.json").read_text())["rows"]
    return {r["after_the_stores"]: r for r in rows if (r["sms"], r["stores_per_warp"], r["by"]) == (sms, stores, by)}


def test_what_was_stored_has_arrived() -> None:
    assert {r["wrong_words"] for r in json.loads((FOLDER / "store_queue.json").read_text())["rows"]} == {0}


def test_stores_wait_in_a_queue_before_the_sm_takes_them() -> None:
    for sms in (1, 132):
        for stores in (16, 32):
            rows = queue_rows(sms, stores)
            taken = rows["nothing"]["fenced_cycles"]
            assert taken - max(r["stored_cycles"] for r in rows.values()) > 600  # ten warp-stores of each of four warps, 16 cycles each
            for then in ("shuffle", "shared load", "overwrite"):
                assert abs(rows[then]["then_cycles"] - taken) < 0.05 * taken + 100


def test_a_read_from_memory_waits_for_the_drain_of_all_but_a_few_kilobytes() -> None:
    """And one by the copy engine for that of all but `PASSED_BYTES`, with which the predictor lets operands wait."""
    for stores in (4, 8, 16, 32):
        drained = (stores * 4 * 512 - 4600) / 25.6  # one SM alone, bytes per cycle
        assert abs(queue_rows(1, stores)["global load"]["then_cycles"] - REACH - drained) < 0.02 * (drained + REACH)
    row = queue_rows(132, 8)["global load"]
    assert row["stored_cycles"] < 100
    assert row["then_cycles"] > 8000
    # All SMs share 190 bytes a cycle: what has drained by then is what was stored less 4 to 8 kB per SM.
    for stores in (8, 16, 32):
        cycles = queue_rows(132, stores)["global load"]["then_cycles"] - REACH
        assert 4e3 < stores * 4 * 512 - cycles * 190 / 132 < 8e3
    by_engine = queue_rows(132, 8)["bulk load"]["bystander_longest_cycles"] - 714
    assert abs(8 * 4 * 512 - by_engine * 190 / 132 - PASSED) < 0.05 * PASSED
    for sms, stores in ((66, 4), (66, 8), (132, 4), (132, 8)):
        by_engine = queue_rows(sms, stores)["bulk load"]["bystander_longest_cycles"] - 714
        assert 0.99 * PASSED_BYTES.low < stores * 4 * 512 - by_engine * 190 / sms < PASSED_BYTES.high


def test_sms_that_store_nothing_read_as_fast_as_ever() -> None:
    for sms in (33, 66):
        for then, idle in (("global load", 400), ("bulk load", 730), ("shared load", 110)):
            busy, quiet = (queue_rows(sms, stores)[then] for stores in (32, 4))
            assert busy["others_longest_cycles"] < idle
            assert abs(busy["others_longest_cycles"] - quiet["others_longest_cycles"]) < 20
            assert busy["bystander_longest_cycles"] > 2 * busy["others_longest_cycles"]


def test_ordinary_reads_pass_bulk_stores_and_the_copy_engines_do_not() -> None:
    plain, bulk = queue_rows(132, 32), queue_rows(132, 32, "bulk")
    assert bulk["global load"]["bystander_longest_cycles"] < 0.4 * plain["global load"]["bystander_longest_cycles"]
    assert bulk["bulk load"]["then_cycles"] > bulk["nothing"]["fenced_cycles"]
    assert bulk["bulk load"]["bystander_longest_cycles"] > 2 * bulk["global load"]["bystander_longest_cycles"]


def test_recorded_dumps_of_a_kernel_import() -> None:
    paths = sorted(FOLDER.glob("tiles-*.npz"))
    traces = read_traces(paths)
    assert len(traces) == 2
    schedule = traces[0].schedule
    assert (schedule.producer_count, schedule.warps, len(schedule.bursts)) == (132, 4, 18)
    # 18 bursts of 32 KB on 132 SMs, with less compute than the drain takes: R by the whole launch is that of the node within 5 %.
    for trace in traces:
        rate = sum(b.bytes for b in schedule.bursts) * 132 / (trace.end_ns.max() - trace.start_ns.min())
        assert 350 < rate < 395
    # The node model of other dies predicts the launch from the tiles' sizes and their compute when nothing holds it back.
    parts = parts_of(read_stamps(paths[0]))
    free = [int(min((p.end_clock - p.start_clock)[p.kind == COMPUTE][kind::3].min() for p in parts)) for kind in range(3)]
    assert [round(cycles, -2) for cycles in free] == [3300, 6400, 9500]
    bursts = tuple(Burst(32768, free[i % 3] if i else 0) for i in range(18))
    found = predict(load_model(FOLDER.parent / "2026-11-29-profile" / "model.json"), Schedule(bursts, 132, 4, start="free"))
    measured = np.median([t.end_ns[-1].mean() - t.start_ns[0].mean() for t in traces])
    assert abs((found.total_ns - found.start_ns[0]) / measured - 1) < 0.05
    tasks, trace = tasks_of(read_stamps(paths[0]))
    assert tasks.task_count == 132 * 18
    assert np.isclose(trace.total_ns, np.nanmax(trace.store_end_ns))
