"""An operator's acceptance rules for a node, in TOML, and their judgement over a recorded run (docs/operate.md).

A rule is a least or a greatest value of one named quantity. It passes when the whole interval of the quantity keeps it, fails when
the whole interval breaks it, and is undetermined when the limit lies inside the interval. What is missing fails: a link that gave no
number has not been shown to be good.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from xstage_bench.errors import DataError
from xstage_bench.io.json_file import read_bytes
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.headline import headline_entry

if TYPE_CHECKING:
    from xstage_bench.model.document import BurstGap, Model, PairModel
    from xstage_bench.record.manifest import Manifest
    from xstage_bench.record.reader import Run

SCHEMA_VERSION = 1
Result = Literal["pass", "fail", "undetermined"]
Quantity = tuple[float | None, float | None, float | None, str | None]  # value, low, high, and the reason where there is no value
Finite = Annotated[float, msgspec.Meta(gt=-1e300, lt=1e300)]


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A least and a greatest value, one or both."""

    min: Finite | None = None
    max: Finite | None = None


Rules = dict[str, Bound]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A limits file: rules for the node, for every GPU, for every ordered pair, and for single pairs, which replace those for all.

    `producers` and `warps` choose the entry of the model that T0, R and Q are taken from; the report's own choice otherwise.
    """

    schema_version: int
    producers: Annotated[int, msgspec.Meta(ge=1)] | None = None
    warps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    node: Rules = msgspec.field(default_factory=dict)
    gpus: Rules = msgspec.field(default_factory=dict)
    pairs: Rules = msgspec.field(default_factory=dict)
    pair: dict[str, Rules] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One rule on one subject: what was asked, what was found, and how it stands."""

    subject: str
    metric: str
    rule: str
    result: Result
    value: float | None
    low: float | None
    high: float | None
    reason: str | None = None


def load_limits(path: Path) -> Limits:
    """Read and check a limits file.

    Raises
    ------
    UsageError
        It does not exist.
    DataError
        Not TOML, an unknown key or quantity, a bound that bounds nothing, or a newer schema version.
    """
    data = read_bytes(path)
    try:
        document = tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
        limits = msgspec.convert(document, Limits)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}", "docs/operate.md shows a limits file") from error
    if limits.schema_version != SCHEMA_VERSION:
        why = f"{path} has schema version {limits.schema_version}; this xstage-bench reads {SCHEMA_VERSION}"
        raise DataError(why, "install a newer xstage-bench, or write it anew")
    asked = 0
    for where, known, rules in _tables(limits):
        for name, bound in rules.items():
            asked += 1
            if name not in known:
                raise DataError(f"{path}: [{where}] knows no quantity '{name}'", f"use one of: {', '.join(known)}")
            if bound.min is None and bound.max is None:
                raise DataError(f"{path}: [{where}] {name} has neither min nor max", f"{name} = {{ min = 1 }}")
            if bound.min is not None and bound.max is not None and bound.min > bound.max:
                raise DataError(f"{path}: [{where}] {name} has min {bound.min:g} above max {bound.max:g}", "no value keeps both: swap them")
    if not asked:
        raise DataError(f"{path} asks for nothing, and would pass whatever it is shown", "docs/operate.md shows a limits file")
    return limits


def judge(run: Run, model: Model, limits: Limits) -> list[Judgement]:
    """Apply every rule to everything that it speaks of."""
    manifest = run.manifest
    found = [_judge("node", name, bound, NODE[name](manifest)) for name, bound in limits.node.items()]
    for gpu in manifest.node.gpus:
        found += [_judge(f"GPU {gpu.index}", name, bound, GPU[name](manifest, gpu.uuid)) for name, bound in limits.gpus.items()]
    if not manifest.node.gpus and limits.gpus:
        found.append(_judge("GPUs", next(iter(limits.gpus)), next(iter(limits.gpus.values())), (None, None, None, "the run has no GPU")))
    measured = [p.pair for p in model.pairs if not p.is_local]
    wanted = [f"{a}>{b}" for a, b in manifest.node.pairs] + list(manifest.node.unusable or {})
    names = list(dict.fromkeys([*wanted, *measured, *manifest.failed_pairs, *limits.pair]))
    for name in names:
        rules = {**limits.pairs, **limits.pair.get(name, {})}
        found += [_judge(f"pair {name}", metric, bound, _of_pair(manifest, model, limits, name, metric)) for metric, bound in rules.items()]
    if not names and limits.pairs:
        first = next(iter(limits.pairs))
        found.append(_judge("pairs", first, limits.pairs[first], (None, None, None, "the run has no pair")))
    return found


def _tables(limits: Limits) -> Iterator[tuple[str, Mapping[str, Any], Rules]]:
    yield "node", NODE, limits.node
    yield "gpus", GPU, limits.gpus
    yield "pairs", PAIR, limits.pairs
    for name, rules in limits.pair.items():
        yield f'pair."{name}"', PAIR, rules


def _judge(subject: str, metric: str, bound: Bound, quantity: Quantity) -> Judgement:
    value, low, high, reason = quantity
    sides = [f">= {bound.min:g}" if bound.min is not None else "", f"<= {bound.max:g}" if bound.max is not None else ""]
    rule = " and ".join(s for s in sides if s)
    if value is None:
        return Judgement(subject, metric, rule, "fail", None, None, None, reason or "not recorded")
    low, high = (value if low is None else low), (value if high is None else high)
    least, most = (float("-inf") if bound.min is None else bound.min), (float("inf") if bound.max is None else bound.max)
    if (passed := low >= least and high <= most) or high < least or low > most:
        return Judgement(subject, metric, rule, "pass" if passed else "fail", value, low, high)
    return Judgement(subject, metric, rule, "undetermined", value, low, high, "the limit lies inside the interval: measure more")


def _exactly(value: float | None, reason: str | None = None) -> Quantity:
    return value, value, value, reason


def _of_pair(manifest: Manifest, model: Model, limits: Limits, name: str, metric: str) -> Quantity:
    reason = manifest.failed_pairs.get(name) or (manifest.node.unusable or {}).get(name)
    pair = model.find(name)
    if reason is not None or pair is None:
        return _exactly(None, reason or "this pair was not measured")
    entry = _entry(pair, limits)
    if entry is None:
        return _exactly(None, f"no entry with K = {limits.producers or 'any'}, W = {limits.warps or 'any'} was fitted")
    return PAIR[metric](manifest.node.line_rate(name), model, entry)


def _entry(pair: PairModel, limits: Limits) -> BurstGap | None:
    if limits.producers is None and limits.warps is None:
        return headline_entry(pair)
    most = max((e.producers for e in pair.burst_gap), default=0) if limits.producers is None else limits.producers
    chosen = [e for e in pair.burst_gap if e.producers == most and limits.warps in (None, e.warps)]
    return max(chosen, key=lambda e: (e.capacity_bytes.value is not None, -abs(e.warps - 4)), default=None)


def _estimate(e: Estimate, scale: float = 1.0) -> Quantity:
    if e.value is None:
        return _exactly(None, e.reason or "not identified")
    return e.value * scale, None if e.low is None else e.low * scale, None if e.high is None else e.high * scale, None


def _share(line: float | None, _: Model, entry: BurstGap) -> Quantity:
    return _estimate(entry.drain_gb_per_s, 1 / line) if line else _exactly(None, "the line rate is not known")


def _facts(manifest: Manifest, uuid: str | None) -> dict[str, Any] | None:
    """What NVML said of one GPU at the end of the run, or at its start where the run was interrupted."""
    known = (manifest.environment_after or manifest.environment_before or {}).get("gpus") or []
    return next((facts for facts in known if uuid is not None and facts.get("uuid") == uuid), None)


def _fact(read: Callable[[dict[str, Any]], float | None]) -> Callable[[Manifest, str | None], Quantity]:
    def of(manifest: Manifest, uuid: str | None) -> Quantity:
        facts = _facts(manifest, uuid)
        value = None if facts is None else read(facts)
        return _exactly(None if value is None else float(value), "NVML did not say" if value is None else None)

    return of


def _risen(counter: str) -> Callable[[Manifest, str | None], Quantity]:
    def of(manifest: Manifest, uuid: str | None) -> Quantity:
        risen = (manifest.link_error_deltas or {}).get(uuid or "", {}).get(counter)
        return _exactly(None if risen is None else float(risen), "the counter was not read before and after, or was reset")

    return of


def _active(facts: dict[str, Any]) -> float | None:
    states = None if facts.get("links") is None else [link["active"] for link in facts["links"]]
    return None if states is None or None in states else float(sum(states))


NODE: dict[str, Callable[[Manifest], Quantity]] = {
    "gpus": lambda m: _exactly(float(len(m.node.gpus))),
    "pairs": lambda m: _exactly(float(len([p for p in m.node.pairs if f"{p[0]}>{p[1]}" not in m.failed_pairs]))),
    "line_rate_gb_per_s": lambda m: _exactly(m.node.line_rate_gb_per_s, "the line rate is not known"),
}
GPU: dict[str, Callable[[Manifest, str | None], Quantity]] = {
    "links_active": _fact(_active),
    "sm_clock_max_mhz": _fact(lambda facts: facts.get("sm_clock_max_mhz")),
    "temperature_c": _fact(lambda facts: facts.get("temperature_c")),
    "ecc_uncorrected": _fact(lambda facts: facts.get("ecc_uncorrected")),
    **{f"{counter}_errors": _risen(counter) for counter in ("replay", "recovery", "crc")},
}
PAIR: dict[str, Callable[[float | None, Model, BurstGap], Quantity]] = {
    "drain_gb_per_s": lambda _, __, e: _estimate(e.drain_gb_per_s),
    "drain_share_of_line_rate": _share,
    "capacity_bytes": lambda _, __, e: _estimate(e.capacity_bytes),
    "capacity_bytes_per_producer": lambda _, __, e: _estimate(e.capacity_bytes_per_producer),
    "t0_cycles": lambda _, __, e: _estimate(e.t0_cycles),
    "t0_ns": lambda _, model, e: _estimate(e.t0_cycles, 1e3 / model.sm_clock_mhz),
}
