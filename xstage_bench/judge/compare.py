"""Two nodes, or one node twice: which fitted parameters differ, and is that more than chance (docs/method.md).

The change of each parameter of each pair is the logarithm of a ratio of two Estimates whose standard errors already hold the spread
between processes. A spread between runs, as recorded for identical code on identical hardware, is added, and the intervals of all
changes of one comparison hold together (Bonferroni): at most 1 in 100 comparisons of a node with itself calls anything better or worse.
The errors of the two models on their hold-outs are rows of it too (`compare_errors`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from xstage_bench.errors import DataError, UsageError
from xstage_bench.io.assets import asset_dir
from xstage_bench.judge.compare_errors import SCORES, changes, same_schedules, score_of
from xstage_bench.machine.gpus import Default, borrowed, entries
from xstage_bench.model.document import BurstGap, Model, PairModel, Validation, digest, load_validation
from xstage_bench.model.estimate import Estimate, t_quantile
from xstage_bench.model.headline import headline_entry, t0_at, t0_bytes
from xstage_bench.model.holdout import Errors
from xstage_bench.model.resample import MIN_PROCESSES
from xstage_bench.model.run_fit import MODEL_NAME, VALIDATION_NAME, find_model, is_simulated, usable_samples
from xstage_bench.record.manifest import MANIFEST_NAME, Manifest, load_manifest
from xstage_bench.record.parts import SAMPLES_FOLDER, part_numbers
from xstage_bench.record.reader import Run

Verdict = Literal["same", "better", "worse", "undetermined"]
#: Chance that a comparison of a node with itself calls anything better or worse.
FALSE_ALARMS = 0.01
#: Of it, what the errors of the models may use, where there are any: T0, R and Q stay nearly as sharp as without them.
_OF_ERRORS = 0.2
#: The smallest change that matters to a user: intervals inside it are "same".
MARGIN = 0.05
ACROSS = ("backend", "gpu", "schema")
#: Relative standard deviations beyond that between the processes of a run: from run to run on the same GPUs (ten runs showed none), and
#: from one node to another of the same kind (six nodes: 0.46 %). docs/method.md has the table.
BETWEEN_RUNS, BETWEEN_NODES = 0.002, 0.005
_SPREADS = (
    Default(name="spread between runs", value=BETWEEN_RUNS, unit="relative", source="ten runs on the same GPUs (docs/method.md)"),
    Default(name="spread between nodes", value=BETWEEN_NODES, unit="relative", source="six nodes: 0.46 % (docs/method.md)"),
)


@dataclass(frozen=True, slots=True)
class ComparedNumber:
    """One fitted number to compare.

    Parameters
    ----------
    name : str
    of : callable
        Takes it from an entry.
    sign : {+1, -1}
        +1 where more is better.
    """

    name: str
    of: Callable[[BurstGap], Estimate]
    sign: int


PARAMETERS: tuple[ComparedNumber, ...] = (
    ComparedNumber("t0_cycles", lambda e: e.t0_cycles, -1),
    ComparedNumber("drain_gb_per_s", lambda e: e.drain_gb_per_s, +1),
    ComparedNumber("capacity_bytes", lambda e: e.capacity_bytes, +1),
)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison. `manifest` is null where only a model.json was given.

    `validation` is that of this very fit; null where there is none, or only one of another fit. `folder` is where samples may lie.
    """

    name: str
    model: Model
    manifest: Manifest | None
    validation: Validation | None = None
    folder: Path | None = None

    @property
    def simulated(self) -> bool:
        """Whether its numbers come from a simulator."""
        return is_simulated(self.model) or (self.manifest is not None and self.manifest.simulated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One parameter of one pair: value over baseline minus one, with an interval that holds together with all others."""

    pair: str
    baseline_pair: str
    parameter: str
    producers: int | None = None
    warps: int | None = None
    baseline: float | None = None
    value: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict
    reason: str | None = None
    bytes: int | None = None  # per producer, at which T0 stands


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences, and the worst of them; `left_out` says what was not compared."""

    baseline: Side
    side: Side
    margin: float
    differences: list[Difference]
    left_out: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Worse if anything is, else undetermined if anything is, else better if anything is."""
        found = {d.verdict for d in self.differences}
        order: tuple[Verdict, ...] = ("worse", "undetermined", "better")
        return next((v for v in order if v in found), "same" if found else "undetermined")

    @property
    def notes(self) -> list[str]:
        """What was not compared, and what the verdicts rest on that was measured on another kind of GPU: the spread in every interval."""
        used = _SPREADS[0 if _same_gpus(self.baseline, self.side) else 1]
        notes = [borrowed(gpu, [used]) for s in (self.baseline, self.side) for gpu in _names(s)]
        return [*self.left_out, *dict.fromkeys(f"the verdicts take in a number {note}" for note in notes if note is not None)]


def load_side(where: Path) -> Side:
    """Read a fitted run folder, or a model.json alone."""
    model = find_model(where)
    manifest = load_manifest(where) if where.is_dir() and (where / MANIFEST_NAME).exists() else None
    path = where / VALIDATION_NAME
    validation = load_validation(path) if where.is_dir() and path.exists() else None
    if validation is not None and validation.fitted not in (None, digest(model)):
        validation = None
    return Side(str(where), model, manifest, validation, where if where.is_dir() else None)


def references() -> dict[str, Path]:
    """Return what `load_reference` takes, by name: where each model stands."""
    root = asset_dir("results") / "reference"
    shipped = {p.parent.name: p.parent for p in root.glob(f"*/{MODEL_NAME}")}
    return {e.name: e.model_path for e in entries().values() if e.model_path is not None} | shipped


def load_reference(name: str) -> Side:
    """Read one of the nodes that are shipped with this package, or an entry of the registry that was measured.

    Raises
    ------
    UsageError
        There is none of this name; the hint lists those there are.
    """
    known = references()
    if name not in known:
        raise UsageError(f"there is no reference node '{name}'", f"use one of: {', '.join(sorted(known)) or 'none is installed'}")
    side = load_side(known[name])
    return replace(side, name=f"reference {name}")


def refuse(baseline: Side, side: Side, across: Sequence[str]) -> None:
    """Raise `DataError` where the two sides are of different kinds, unless told to compare across just that."""
    gpus: tuple[object, object] = (baseline.model.gpu, side.model.gpu)
    if baseline.manifest is not None and side.manifest is not None:  # a model alone does not say how many SMs
        gpus = (_gpu(baseline.manifest), _gpu(side.manifest))
    checks: list[tuple[str, object, object]] = [
        ("schema", baseline.model.schema_version, side.model.schema_version),
        ("backend", baseline.model.backend, side.model.backend),
        ("gpu", *gpus),
    ]
    apart = {name: f"{name}: {baseline.name} is {a}, {side.name} is {b}" for name, a, b in checks if a != b and name not in across}
    if apart:
        options = " ".join(f"--across {name}" for name in apart)
        verb = "compares" if len(apart) == 1 else "compare"
        raise DataError(f"{'; '.join(apart.values())}; they are not compared", f"{options} {verb} them all the same, and says so")


def compare(baseline: Side, side: Side, *, margin: float = MARGIN) -> Comparison:
    """Compare the headline parameters of every ordered pair, and the errors of its model where both sides have a hold-out.

    Parameters
    ----------
    baseline, side : Side
        A pair that the baseline lacks is compared with the baseline's first pair, so that a reference of one node serves any.
    margin : float
        Changes of a parameter whose whole interval lies within plus or minus this are "same".
    """
    cells = _cells(baseline, side)
    errors, notes = _errors(baseline, side)
    share = 1 - _OF_ERRORS if errors else 1.0
    count = max(1, sum(a is not None and b is not None for *_, a, b in cells)) / share
    apart = BETWEEN_RUNS if _same_gpus(baseline, side) else BETWEEN_NODES
    differences = [_difference(pair, against, a, b, parameter, (count, apart), margin) for pair, against, parameter, a, b in cells]
    return Comparison(baseline, side, margin, [*differences, *errors, *_lost(baseline, side)], notes)


def _errors(baseline: Side, side: Side) -> tuple[list[Difference], tuple[str, ...]]:
    """Compare the models' errors pair by pair; or say why not."""
    from scipy.special import ndtri

    without = [s.name for s in (baseline, side) if s.validation is None]
    if without:
        return [], (f"the errors of the models were not compared: {' and '.join(without)} has no validation of this fit (xstage validate)",)
    old, new = _remote(baseline), _remote(side)
    found, notes = [], []
    for name, pair in new.items():
        against = name if name in old else next(iter(old), None)
        scores = None if against is None else (score_of(old[against], baseline.validation), score_of(pair, side.validation))
        if against is None or scores is None or scores[0] is None or scores[1] is None:
            notes.append(f"the errors of the model of pair {name} were not compared: it has no hold-out on both sides")
        elif not (scores[0].standard_errors and scores[1].standard_errors):
            notes.append(f"the errors of the model of pair {name} were not compared: a validation has no intervals (xstage validate)")
        elif scores[0].model != scores[1].model:
            notes.append(f"the errors of the model of pair {name} were not compared: {scores[0].model} and {scores[1].model} are unlike")
        else:
            found.append((name, against, scores[0], scores[1], _together(baseline, side, name) if name == against else None))
    quantile = -float(ndtri(FALSE_ALARMS * _OF_ERRORS / (2 * len(SCORES) * max(1, len(found)))))
    rows = [
        Difference(
            pair=name, baseline_pair=against, parameter=c.score, baseline=c.baseline, value=c.value,
            change=c.change, low=c.low, high=c.high, verdict=c.verdict(),
            reason=c.reason if c.reason or c.verdict() != "undetermined" else "too few held-out schedules: measure more",
        )
        for name, against, a, b, together in found
        for c in changes(a, b, together, quantile)
    ]  # fmt: skip
    return rows, tuple(notes)


def _together(baseline: Side, side: Side, pair: str) -> tuple[Errors, Errors] | None:
    """Return both sides' errors on the same schedules, where the runs had the same seed and their samples are here."""
    sides = []
    for s in (baseline, side):
        if s.folder is None or s.manifest is None or not part_numbers(s.folder / SAMPLES_FOLDER):
            return None
        sides.append((s, s.folder, s.manifest))
    if sides[0][2].seed != sides[1][2].seed:
        return None
    first, second = ((s.model, _remote(s)[pair], usable_samples(Run(folder, manifest))) for s, folder, manifest in sides)
    return same_schedules(first, second)


def _gpu(manifest: Manifest) -> tuple[str, ...]:
    """Name and number of SMs; another die of the same kind is comparable, and is what a fleet is made of."""
    return tuple(dict.fromkeys(f"{g.name} with {g.sm_count} SMs" for g in manifest.node.gpus))


def _names(side: Side) -> list[str]:
    return [side.model.gpu] if side.manifest is None else [g.name for g in side.manifest.node.gpus]


def _same_gpus(baseline: Side, side: Side) -> bool:
    """Whether both sides are known to be the same dies; simulated GPUs have no identity, and are all alike."""
    if baseline.manifest is None or side.manifest is None:
        return baseline.simulated and side.simulated
    ids = [sorted(str(g.uuid) for g in s.manifest.node.gpus) for s in (baseline, side) if s.manifest is not None]
    return ids[0] == ids[1]


def _remote(side: Side) -> dict[str, PairModel]:
    failed = {} if side.manifest is None else side.manifest.failed_pairs
    chosen = [p for p in side.model.pairs if not p.is_local and p.pair not in failed]
    return {p.pair: p for p in chosen if (p.flavour, p.layout) == ("st.v4", "contiguous")}


def _cells(baseline: Side, side: Side) -> list[tuple[str, str, ComparedNumber, BurstGap | None, BurstGap | None]]:
    """Pairs and parameters to compare, and on each side the entry of the same K and W that the parameter is taken from."""
    old, new = _remote(baseline), _remote(side)
    cells = []
    for name, pair in new.items():
        against = name if name in old else next(iter(old), None)
        if against is None:
            continue
        known = [e for e in old[against].burst_gap if pair.find(e.producers, e.warps) is not None]
        entry = headline_entry(replace(old[against], burst_gap=known))
        same = None if entry is None else pair.find(entry.producers, entry.warps)
        cells += [(name, against, parameter, entry, same) for parameter in PARAMETERS]
    return cells


def _lost(baseline: Side, side: Side) -> list[Difference]:
    """Pairs that the baseline has and this side tried and lost: a regression, whatever the others do. Pairs not asked for are no news."""
    failed = {} if side.manifest is None else {**(side.manifest.node.unusable or {}), **side.manifest.failed_pairs}
    return [
        Difference(pair=name, baseline_pair=name, parameter="pair", verdict="worse", reason=f"measured before, and now: {failed[name]}")
        for name in _remote(baseline)
        if name in failed
    ]


def _difference(
    pair: str, against: str, a: BurstGap | None, b: BurstGap | None, parameter: ComparedNumber, level: tuple[float, float], margin: float
) -> Difference:
    def found(verdict: Verdict, reason: str | None = None, change: tuple[float, float, float] | None = None) -> Difference:
        values = [None if e is None else parameter.of(e).value for e in (a, b)]
        middle, low, high = (None, None, None) if change is None else change
        return Difference(
            pair=pair, baseline_pair=against, parameter=parameter.name, producers=None if b is None else b.producers,
            warps=None if b is None else b.warps, baseline=values[0], value=values[1], change=middle, low=low, high=high,
            verdict=verdict, reason=reason, bytes=t0_bytes(b) if b is not None and parameter.name == "t0_cycles" else None,
        )  # fmt: skip

    if a is None or b is None:
        return found("undetermined", "no producer and warp count was fitted on both sides")
    for entry in (a, b):
        e = parameter.of(entry)
        if e.value is None or e.standard_error is None or e.status != "ok" or e.value <= 0:
            return found("undetermined", e.reason or f"{parameter.name} has no interval on one side ({e.status})")
        if entry.processes < MIN_PROCESSES:
            return found("undetermined", f"{entry.processes} process(es) on one side: the spread between processes is not known")
    if parameter.name != "drain_gb_per_s" and (a.t0_bytes is None) != (b.t0_bytes is None):
        return found("undetermined", "one side was fitted by an earlier version, with other rules for T0 and Q: xstage fit RUN")
    if parameter.name == "t0_cycles" and t0_at(a) != t0_at(b):
        return found("undetermined", f"the sweeps differ: T0 stands at {t0_at(a)} and at {t0_at(b)}")
    change = change_of(a, b, parameter, *level)
    if -margin <= change[1] and change[2] <= margin:
        return found("same", None, change)
    if change[1] > 0 or change[2] < 0:
        return found("better" if (change[1] > 0) == (parameter.sign > 0) else "worse", None, change)
    return found("undetermined", f"the interval is too wide for a margin of {100 * margin:g} %: measure more", change)


def change_of(a: BurstGap, b: BurstGap, parameter: ComparedNumber, count: float, apart: float) -> tuple[float, float, float]:
    """Value over baseline minus one, and its interval among `count` that shall hold together.

    Welch's interval on logarithms: each side's variance has (processes - 1) degrees of freedom; `apart`, the relative standard deviation of
    either side beyond its processes, is taken as known, and so is what the choice of sizes adds where the sides chose differently.
    """
    old, new = parameter.of(a), parameter.of(b)
    assert old.value and new.value and old.standard_error is not None and new.standard_error is not None  # noqa: PT018
    variances = [(e.standard_error / e.value) ** 2 for e in (old, new) if e.standard_error is not None and e.value]
    freedom = [a.processes - 1, b.processes - 1]
    own = sum(variances)
    chosen = [(e.choice_error or 0.0) / e.value for e in (old, new) if e.value] if a.sizes != b.sizes else []
    known = 2 * apart**2 + sum(c**2 for c in chosen)
    spread = sum(v**2 / f for v, f in zip(variances, freedom, strict=True))
    degrees = (own + known) ** 2 / spread if spread > 0 else math.inf
    half = t_quantile(degrees, 1 - FALSE_ALARMS / count) * math.sqrt(own + known)
    middle = math.log(new.value / old.value)
    return math.expm1(middle), math.expm1(middle - half), math.expm1(middle + half)
