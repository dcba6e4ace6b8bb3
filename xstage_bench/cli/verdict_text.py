"""The end of ``xstage profile``: the numbers of each pair in units that a person reads, and how good the model is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xstage_bench.cli.output import table
from xstage_bench.model.headline import headline_entry, headline_rate, t0_at

if TYPE_CHECKING:
    from xstage_bench.model.document import Model, PairModel, Validation
    from xstage_bench.model.estimate import Estimate

#: As many pairs are shown one by one; of more the best, the median and the worst.
_ALL = 3


def verdict_text(model: Model, validation: Validation | None) -> str:
    """Return a row for each pair, or for the best, the median and the worst by R, and what they hold for."""
    first: dict[str, PairModel] = {}
    for pair in model.pairs:
        if not pair.is_local:
            first.setdefault(pair.pair, pair)
    ranked = sorted(first.values(), key=_rate, reverse=True)
    if not ranked:
        return "no pair could be fitted"
    if len(ranked) <= _ALL:
        shown = [("", pair) for pair in first.values()]
    else:
        shown = [("best", ranked[0]), ("median", ranked[len(ranked) // 2]), ("worst", ranked[-1])]
    rows = [[*([name] if len(ranked) > _ALL else []), *_row(model, validation, pair)] for name, pair in shown]
    head = [*([f"of {len(ranked)}"] if len(ranked) > _ALL else []), "pair", "R, GB/s", "Q, MB", "T0, us", "error, %", "p95, %", "model"]
    entry = headline_entry(shown[0][1])
    where = "" if entry is None else f"T0 at {t0_at(entry)} per SM; "
    return f"{table(head, rows)}\n{where}±: 95 %; errors on the hold-out"


def _rate(pair: PairModel) -> float:
    found = headline_rate(pair)
    return -1.0 if found is None or found[0].value is None else found[0].value


def _row(model: Model, validation: Validation | None, pair: PairModel) -> list[object]:
    entry, rate = headline_entry(pair), headline_rate(pair)
    clock = model.sm_clock_mhz
    scores = [] if validation is None else [s for s in validation.models if (s.pair, s.flavour) == (pair.pair, pair.flavour)]
    by_name = {s.model: s.issue_time for s in scores}
    error = by_name.get("node") or by_name.get("burst_gap")
    return [
        pair.pair,
        None if rate is None else _within(rate[0], 1.0),
        None if entry is None else _within(entry.capacity_bytes, 1e6),
        None if entry is None or not clock else _within(entry.t0_cycles, clock),
        None if error is None or error.median_error is None else f"{100 * error.median_error:.1f}",
        None if error is None or error.p95_error is None else f"{100 * error.p95_error:.0f}",
        "not judged" if pair.holdout is None else pair.holdout.status.replace("_", " "),
    ]


def _within(estimate: Estimate, unit: float) -> str | None:
    """Return a number with half its interval, the larger half, in `unit`."""
    if estimate.value is None:
        return None
    text = f"{estimate.value / unit:.4g}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ± {max(estimate.high - estimate.value, estimate.value - estimate.low) / unit:.1g}"
