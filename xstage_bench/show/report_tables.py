"""Tables of the report: numbers with units and intervals as text, a missing one as the reason why it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xstage_bench.model.headline import headline_entry, headline_rate, t0_at
from xstage_bench.show.html import Table

if TYPE_CHECKING:
    import pandas as pd

    from xstage_bench.machine.finding import Finding
    from xstage_bench.measure.copies import CopyRate
    from xstage_bench.model.document import Model, NoiseFloor, PairModel, Validation
    from xstage_bench.model.estimate import Estimate
    from xstage_bench.record.manifest import Manifest

MISSING = "–"
#: Pairs whose full (K, W) tables are printed; those of a larger node are in model.json.
DETAILED_PAIRS = 4


def copies_table(rows: Sequence[CopyRate], manifest: Manifest) -> Table | None:
    """Return R of the flavours beside whole copies on the same pair, or None where these were not measured."""
    if not rows:
        return None
    names = {"copy_engine": "copy engine", "copy_kernel": "copy kernel, all SMs"}
    lines = list(dict.fromkeys(manifest.node.line_rate(r.pair) for r in rows))
    line = lines[0] if len(lines) == 1 else None
    body = []
    for r in rows:
        rate = f"{MISSING} ({r.reason})" if r.gb_per_s is None else number(r.gb_per_s, 4) + (f" ± {r.half_width}" if r.half_width else "")
        body.append([r.pair.replace(">", " → "), names.get(r.what, r.what), rate, percent(r.share_of_line), str(r.n)])
    note = f"The line rate is {number(line)} GB/s per direction. " if line is not None else ""
    return Table(
        "Beside whole copies of a large buffer",
        ["pair", "what", "GB/s", "of the line rate", "samples"],
        body,
        note + "Copies as nvbandwidth times them; flavours from the first start to the last system fence. By `xstage measure copies`.",
    )


def number(value: float | None, digits: int = 3) -> str:
    """Return a number to so many significant digits, never in exponent form below 10^7; a dash for None and for NaN."""
    if value is None or value != value:
        return MISSING
    rounded = float(f"{value:.{digits}g}")
    whole = abs(rounded) >= 10 ** (digits - 1) or rounded == int(rounded)
    return f"{rounded:,.0f}".replace(",", "\u2009") if whole else f"{rounded:g}"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a fraction as per cent."""
    return MISSING if value is None or value != value else f"{100 * value:.{digits}f} %"


def estimate(e: Estimate, scale: float = 1.0, digits: int = 3) -> str:
    """Return "372 [370, 374]", or why there is no number."""
    if e.value is None:
        return "not identified"
    bounds = "" if e.low is None or e.high is None else f" [{number(e.low / scale, digits)}, {number(e.high / scale, digits)}]"
    return f"{number(e.value / scale, digits)}{bounds}{' (at bound)' if e.status == 'at_bound' else ''}"


def verdict_table(model: Model, manifest: Manifest) -> Table:
    """Return R beside line rate, Q per SM and T0 of each ordered pair; failed pairs with their reason."""
    rows = []
    for pair in model.pairs:
        line = manifest.node.line_rate(pair.pair)
        entry, rate = headline_entry(pair), headline_rate(pair)
        if pair.is_local or pair.pair in manifest.failed_pairs:
            continue
        value = None if rate is None else rate[0].value
        row = [pair.pair.replace(">", " → "), MISSING if rate is None else estimate(rate[0])]
        row.append(MISSING if line is None or value is None else percent(value / line, 0))
        row += (
            [MISSING] * 4
            if entry is None
            else [
                estimate(entry.capacity_bytes_per_producer, 1e3),
                estimate(entry.capacity_bytes, 1e6),
                estimate(entry.t0_cycles, model.sm_clock_mhz),
                t0_at(entry),
            ]
        )
        rows.append([*row, "simulated" if manifest.simulated else "measured"])
    rows += [[key.replace(">", " → "), *[MISSING] * 6, f"failed: {reason}"] for key, reason in sorted(manifest.failed_pairs.items())]
    lines = {None if p.is_local else manifest.node.line_rate(p.pair) for p in model.pairs} - {None}
    share = f"R / line rate ({lines.pop():.0f} GB/s)" if len(lines) == 1 else "R / line rate"
    columns = ["pair", "R (GB/s)", share, "Q per SM (kB)", "Q of all K (MB)", "T0 (µs)", "T0 and Q at", "state"]
    level = next((e.level for p in model.pairs for b in p.burst_gap for e in [b.t0_cycles]), 0.95)
    return Table("Verdict per ordered pair", columns, rows, f"In brackets: {100 * level:.0f} % interval. GB/s = 10⁹ bytes per second.")


def status_table(samples: pd.DataFrame) -> Table:
    """Return how many sample rows of each probe entered, and how many were kept out, by status."""
    statuses = sorted(set(samples["status"].astype(str)) - {"ok"})
    kept = samples.assign(status=samples["status"].astype(str), probe=samples["probe"].astype(str))
    counts = kept.groupby(["probe", "status"]).size().unstack(fill_value=0)
    rows = [[str(p), *[number(int(line.get(s, 0)), 9) for s in ["ok", *statuses]]] for p, line in counts.iterrows()]
    total = counts.sum()
    rows.append(["all", *[number(int(total.get(s, 0)), 9) for s in ["ok", *statuses]]])
    note = "Rows: one per schedule, repetition and burst. Only those with status ok enter a fit; the others stay in the record."
    return Table("Samples by status", ["probe", "ok", *statuses], rows, note)


def parameter_tables(model: Model) -> list[Table]:
    """Return the fitted law per (K, W) of each pair, local controls last."""
    pairs = sorted(model.pairs, key=lambda p: p.is_local)
    tables = []
    for pair in pairs[:DETAILED_PAIRS]:
        rows = [
            [
                str(e.producers), str(e.warps), estimate(e.issue_cycles_per_warp_store), estimate(e.stalled_cycles_per_warp_store),
                estimate(e.knee_bytes, 1e3), estimate(e.capacity_bytes_per_producer, 1e3), estimate(e.drain_gb_per_s),
                percent(e.median_error), str(e.repetitions),
            ]
            for e in sorted(pair.burst_gap, key=lambda e: (e.producers, e.warps))
        ]  # fmt: skip
        columns = [
            "K", "W", "free (cycles per warp-store)", "stalled (cycles per warp-store)", "knee (kB per SM)", "Q per SM (kB)", "R (GB/s)",
            "median error", "repetitions",
        ]  # fmt: skip
        name = (
            f"GPU {pair.pair.partition('>')[0]}, own memory (local control)"
            if pair.is_local
            else f"pair {pair.pair.replace('>-1', ' → host memory').replace('>', ' → ')}"
        )
        tables.append(Table(f"Fitted law, {name}, {pair.flavour}", columns, rows, _why_missing(pair)))
    if len(pairs) > DETAILED_PAIRS:
        last = tables[-1]
        more = f"The other {len(pairs) - DETAILED_PAIRS} pairs are in model.json. {last.note}".strip()
        tables[-1] = Table(last.title, last.columns, last.rows, more)
    return tables


def _why_missing(pair: PairModel) -> str:
    """Return each reason why a Q or R is not identified, with the (K, W) that it holds for."""
    reasons: dict[str, list[str]] = {}
    for e in pair.burst_gap:
        for name, number_of in (("Q", e.capacity_bytes_per_producer), ("R", e.drain_gb_per_s)):
            if number_of.value is None:
                reasons.setdefault(f"{name} not identified: {number_of.reason or 'no reason recorded'}", []).append(
                    f"{e.producers}×{e.warps}"
                )
    return " ".join(f"{reason} (K×W: {', '.join(cells)})." for reason, cells in reasons.items())


def validation_tables(validation: Validation | None) -> list[Table]:
    """Return the hold-out scores and the per-regime errors."""
    if validation is None:
        return []
    scores = [
        [
            s.model, s.pair.replace(">", " → "), s.family, str(s.n_schedules), number(s.n_bursts, 9), percent(s.issue_time.median_error),
            percent(s.issue_time.p90_error), percent(s.issue_time.p95_error), percent(s.total_time.median_error),
            percent(s.total_time.p95_error), percent(s.regime_balanced_accuracy), percent(s.interval_coverage_90),
        ]
        for s in [*validation.models, *(f for f in validation.families if f not in validation.models)]
    ]  # fmt: skip
    columns = [
        "model", "pair", "hold-out", "schedules", "bursts", "issue time: median error", "p90", "p95", "total time: median error", "p95",
        "stall or not (balanced accuracy)", "90 % interval covers",
    ]  # fmt: skip
    note = "Errors are |predicted − measured| / measured. No held-out schedule has entered a fit."
    note += "".join(_floor_words(f) for f in validation.noise_floor if f.median is not None)
    tables = [Table("Held-out schedules", columns, scores, note)]
    if validation.isolated_law:
        rows = [
            _law_row(law.pair, law.producers, law.n_points, law.median_error, law.p95_error, law.warps) for law in validation.isolated_law
        ]
        tables.append(Table("Isolated-burst law", ["pair", "K", "W", "sizes", "median error", "p95"], rows))
    if validation.periodic_law:
        rows = [_law_row(law.pair, law.producers, law.n_points, law.median_error, law.p90_error) for law in validation.periodic_law]
        tables.append(Table("Periodic law max(T0, V/R − G) on stalled points", ["pair", "K", "points", "median error", "p90"], rows))
    if validation.timed_stall:
        rows = [
            [
                t.pair.replace(">", " → "), "all" if t.producers is None else str(t.producers), str(t.n_stalled), str(t.n_free),
                percent(t.balanced_accuracy),
            ]
            for t in validation.timed_stall
        ]  # fmt: skip
        tables.append(Table("Stall or no stall on deadlines", ["pair", "K", "stalled", "free", "balanced accuracy"], rows))
    return tables


def _floor_words(f: NoiseFloor) -> str:
    pair = f.pair.replace(">", " → ")
    return f" One process against the others, {pair}, {f.family}: median {percent(f.median)}, p95 {percent(f.p95)}."


def gate_tables(findings: Sequence[Finding]) -> list[Table]:
    """Return whether each pair's model may be used, and what to try where not."""
    rows = [[f.status, f.check.replace(">", " → "), f.detail, f.hint or MISSING] for f in findings]
    return [Table("May the model be used?", ["", "model", "on its own hold-out", "what to try"], rows)] if rows else []


def _law_row(pair: str, producers: int, points: int, median: float | None, tail: float | None, warps: int | None = None) -> list[str]:
    middle = [] if warps is None else [str(warps)]
    return [pair.replace(">", " → "), str(producers), *middle, str(points), percent(median), percent(tail)]


def gpu_table(manifest: Manifest) -> Table:
    """Return identity, clocks and throttle reasons of each GPU, as far as they were recorded."""
    before, after = _by_uuid(manifest.environment_before), _by_uuid(manifest.environment_after)
    rows = []
    for gpu in manifest.node.gpus:
        first, last = before.get(gpu.uuid, {}), after.get(gpu.uuid, {})
        clocks = [first.get("sm_clock_mhz"), last.get("sm_clock_mhz")]
        reasons = sorted({str(r) for facts in (first, last) for r in facts.get("clock_event_reasons") or []})
        rows.append(
            [
                str(gpu.index), gpu.name, gpu.uuid or MISSING, gpu.pci_address or MISSING, str(gpu.sm_count), number(gpu.sm_clock_mhz, 4),
                " / ".join(number(c, 4) for c in clocks), ", ".join(reasons) or MISSING,
            ]
        )  # fmt: skip
    columns = ["GPU", "name", "UUID", "PCI address", "SMs", "SM clock (MHz)", "clock before / after (MHz)", "clock event reasons"]
    return Table("GPUs", columns, rows)


def _by_uuid(environment: dict[str, Any] | None) -> dict[Any, dict[str, Any]]:
    return {gpu.get("uuid"): gpu for gpu in (environment or {}).get("gpus") or []}
