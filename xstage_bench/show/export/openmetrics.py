"""A model as metrics: valid OpenMetrics and valid Prometheus text, which is what node_exporter's textfile collector reads.

Only what both have in common: gauges, no timestamps (the collector refuses them), base units in the names, `# EOF` last, which is a
comment in the older format. A node's numbers are those with all its SMs storing; one series each for value, lower and upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from xstage_bench.model.estimate import Estimate
from xstage_bench.model.stage import Stage
from xstage_bench.show.export.document import ExportedModel

_FORMS = (
    ("xstage_issue_time", "seconds", "Issue time T0 of a burst of reference_bytes per SM without backpressure"),
    ("xstage_drain", "bytes_per_second", "Drain rate R, all SMs together"),
    ("xstage_capacity", "bytes", "Outstanding capacity Q, all SMs together"),
)
_BOUNDS = (("", "value", ""), ("_low", "low", ", lower bound of its interval"), ("_high", "high", ", upper bound of its interval"))


@dataclass(frozen=True, slots=True)
class _Sample:
    labels: dict[str, str]
    value: float


def as_openmetrics(exported: ExportedModel) -> str:
    """Text for a file ``NAME.prom`` in the folder of the textfile collector. A number that is not identified has no sample."""
    p = exported.provenance
    most: dict[tuple[str, str, str], int] = {}
    for s in exported.stages:
        key = (s.pair, s.flavour, s.layout)
        most[key] = max(most.get(key, 0), s.producers)
    everybody = [s for s in exported.stages if s.producers == most[s.pair, s.flavour, s.layout]]
    about = {"gpu": p.gpu, "backend": p.backend, "simulated": str(p.simulated).lower(), "model": p.model, "measured": p.measured or ""}
    info = _Sample({**about, "driver": p.driver or "", "version": p.xstage_bench}, 1.0)
    lines = _family("xstage_model_info", "Where the numbers come from; always 1", [info])
    for position, (stem, unit, meaning) in enumerate(_FORMS):
        for suffix, bound, words in _BOUNDS:
            samples = [_Sample(_labels(s), v) for s in everybody if (v := _base_units(s, position, bound)) is not None]
            lines += _family(f"{stem}{suffix}_{unit}", f"{meaning}{words}", samples)
    return "\n".join([*lines, "# EOF"]) + "\n"


def _base_units(stage: Stage, position: int, bound: str) -> float | None:
    estimate: Estimate = (stage.t0_cycles, stage.drain_gb_per_s, stage.capacity_bytes)[position]
    value: float | None = getattr(estimate, bound)
    return None if value is None else value * (1e-6 / stage.sm_clock_mhz, 1e9, 1.0)[position]


def _labels(stage: Stage) -> dict[str, str]:
    return {
        "pair": stage.pair, "flavour": stage.flavour, "layout": stage.layout, "producers": str(stage.producers), "warps": str(stage.warps),
        "reference_bytes": str(stage.bytes),
    }  # fmt: skip


def _family(name: str, meaning: str, samples: list[_Sample]) -> list[str]:
    if not samples:
        return []
    head = [f"# HELP {name} {_escape(meaning)}", f"# TYPE {name} gauge"]
    return head + [f"{name}{{{','.join(f'{k}={_quoted(v)}' for k, v in s.labels.items())}}} {s.value!r}" for s in samples]


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _quoted(text: str) -> str:
    return f'"{_escape(text)}"'
