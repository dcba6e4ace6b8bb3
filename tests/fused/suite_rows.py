"""A row of the suite's document, as far as its readers look at it; nothing of it was measured."""

from __future__ import annotations

from typing import Any

US = {"wave 2": 130.0, "wave alone": 90.0, "chosen": 100.0, "chosen alone": 90.0, "chosen local": 91.0}


def suite_row(us: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    """A row with variants of these times, `US` where nothing is said."""
    head = {"shape": "hy3", "dtype": "fp8", "combine": "bf16", "routing": "balanced", "tokens_per_rank": 512, "ep": 8, "emulated": True}
    rest = {"chosen": "interleaved-2", "unfused_us": None, "drain_us": 60.0, "flops": 10**12}
    return {**head, **rest, "variants": {name: {"arrived_us": {"value": value}} for name, value in (us or US).items()}, **changes}


def suite_stalls(wave: tuple[float, float | None], chosen: tuple[float, float | None], order: str = "wave-2") -> dict[str, Any]:
    """Stalls of both orders, measured and predicted."""
    span = {"store_span_us": {"median": 3.0, "p90": 5.0}, "between_us": 1.5, "within_us": 0.4, "idle_us": 2.0, "idle_without_us": 0.5}
    both = {"wave": (order, wave), "chosen": ("interleaved-2", chosen)}
    return {which: {"order": name, "measured_us": a, "predicted_us": b, **span} for which, (name, (a, b)) in both.items()}
