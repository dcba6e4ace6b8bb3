"""Is a model good enough to predict with? Its errors on the run's own hold-out, against a recorded node's and against the noise.

The rule, for each statistic of the model that predicts a pair: it fails beyond twice the larger of the yardstick's error and the run's own
noise floor. Twice, because a node of the same kind, measured alike, has shown 0.9 to 1.2 times the yardstick's errors, and every
instrument known to be wrong at least 2.2 times one of them. The floor, because no model can be better than what one process says of the
others. A model is called failed when chance (other schedules of the same family) does not explain the excess, and undetermined when it may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from xstage_bench.io.assets import asset_dir
from xstage_bench.io.json_file import read_json
from xstage_bench.machine.finding import Finding, Status
from xstage_bench.model.cells import TINY
from xstage_bench.model.document import HoldoutStatus, HoldoutVerdict, Model, ModelScore, NoiseFloor, PairModel, Validation, digest
from xstage_bench.schedule.bursts import HOST

Quantity = Literal["median error", "p95 error", "stall or not", "interval coverage"]
ERRORS_NAME = "errors.json"
#: How much larger than the yardstick's, or than the noise floor, an error may be.
FACTOR = 2.0
#: One-sided 95 %: how many standard errors beyond the limit are no chance.
_CERTAIN = 1.645
#: 90 % intervals may cover so much less before anything is said against them: what the same model did on the node that it was made on.
NOMINAL_COVERAGE, COVERAGE_TOLERANCE = 0.9, 0.05
PLAIN = "st.v4"

_TAIL = "a closing stamp that does not wait for its stores shows so: docs/method.md; another compiler, then xstage profile again"
_TRY: dict[Quantity, str] = {
    "median error": "the issue costs are not those of this GPU or compiler: xstage profile --full, on an idle node; docs/method.md",
    "p95 error": _TAIL,
    "stall or not": _TAIL,
    "interval coverage": "do not use the intervals; three processes and the full sweep widen them: xstage profile --full",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceErrors:
    """What one model did on one family of hold-outs of a recorded node; null where that is not judged.

    `bar`: nothing was recorded, and this is what is asked of it.
    """

    flavour: str
    family: str
    model: str
    median_error: float | None = None
    p95_error: float | None = None
    regime_balanced_accuracy: float | None = None
    interval_coverage_90: float | None = None
    bar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """Errors to hold others against. `default`: also for GPUs of which no node is recorded, with this destination."""

    name: str
    gpus: list[str]
    destination: Literal["gpu", "host"]
    source: str
    errors: list[ReferenceErrors]
    default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class YardstickFile:
    """``results/reference/errors.json``, made by tests/claims/reference_errors.py."""

    schema_version: int
    yardsticks: list[Yardstick]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGate:
    """One statistic of one model on one family of held-out schedules, beside its limit (a greatest error, a least share)."""

    pair: str
    flavour: str
    family: str
    model: str
    quantity: Quantity
    value: float
    limit: float
    status: HoldoutStatus
    yardstick: str
    because: str

    @property
    def is_error(self) -> bool:
        """True where less is better."""
        return self.quantity in ("median error", "p95 error")

    def sentence(self) -> str:
        """Say what was found, beside what."""
        kind = "at most" if self.is_error else "at least"
        tiny = " of tiny bursts" if self.family == TINY else ""
        return f"{self.model} model, {self.quantity}{tiny} {_percent(self.value)}, {kind} {_percent(self.limit)} ({self.because})"


@cache
def yardsticks() -> tuple[Yardstick, ...]:
    """Read the yardsticks that are shipped with this package."""
    return tuple(read_json(asset_dir("results") / "reference" / ERRORS_NAME, YardstickFile, newest=1).yardsticks)


def yardstick_for(gpu: str, destination: Literal["gpu", "host"], known: tuple[Yardstick, ...] | None = None) -> Yardstick:
    """Return the yardstick of a kind of GPU and destination, else the default one, which then says so in its name."""
    found = [y for y in (yardsticks() if known is None else known) if y.destination == destination]
    own = next((y for y in found if gpu in y.gpus), None)
    if own is not None:
        return own
    default = next(y for y in found if y.default)
    return replace(default, name=f"{default.name}, the default: no node of {gpu} is recorded")


def judge_model(model: Model, validation: Validation | None, known: tuple[Yardstick, ...] | None = None) -> list[ModelGate]:
    """Hold the model that predicts each remote pair and flavour against its limits.

    Parameters
    ----------
    model : Model
    validation : Validation or None
        Of that model; nothing is judged without it.
    known : tuple of Yardstick, optional
        Default: those shipped.

    Returns
    -------
    list of ModelGate
        None for a pair whose hold-out was not measured (`findings` says so).
    """
    if validation is None:
        return []
    families = validation.families or validation.models  # files of before the families hold the main one alone
    out: list[ModelGate] = []
    for pair in _remote(model):
        yardstick = yardstick_for(model.gpu, "host" if pair.pair.endswith(f">{HOST}") else "gpu", known)
        form = "node" if pair.node_basis is not None else "burst_gap"
        for score in families:
            if (score.pair, score.flavour, score.model) == (pair.pair, pair.flavour, form):
                same = (f for f in validation.noise_floor if (f.pair, f.flavour, f.family) == (score.pair, score.flavour, score.family))
                out += _gates(score, yardstick, next(same, None))
    return out


def _gates(score: ModelScore, yardstick: Yardstick, floor: NoiseFloor | None) -> Iterator[ModelGate]:
    tiny = score.family == TINY
    mine = [e for e in yardstick.errors if e.model == score.model and (e.family == TINY) == tiny and e.flavour in (score.flavour, PLAIN)]
    if not mine:
        return
    name = f", the bar for {score.family}" if all(e.bar for e in mine) else f" of {yardstick.name}"
    rows: list[tuple[Quantity, str, float | None, float | None]] = [
        ("median error", "median_error", score.issue_time.median_error, None if floor is None else floor.median),
        ("p95 error", "p95_error", score.issue_time.p95_error, None if floor is None else floor.p95),
        ("stall or not", "regime_balanced_accuracy", score.regime_balanced_accuracy, None),
        ("interval coverage", "interval_coverage_90", score.interval_coverage_90, None),
    ]
    for quantity, key, value, noise in rows:
        recorded = [v for e in mine if (v := getattr(e, key)) is not None]
        if value is None or not recorded:
            continue
        # A flavour is judged by its own recorded errors, or by those of plain stores where these are larger.
        if quantity in ("median error", "p95 error"):
            worst = max(recorded)
            of = f"{_percent(worst)}{name}" if noise is None or noise <= worst else f"the noise floor of {_percent(noise)}"
            limit, beyond = FACTOR * max(worst, noise or 0.0), 1.0
        elif quantity == "stall or not":
            worst = min(recorded)
            of, limit, beyond = f"the misses{name}, {_percent(1 - worst)}", 1 - FACTOR * (1 - worst), -1.0
        else:
            worst = min(*recorded, NOMINAL_COVERAGE - COVERAGE_TOLERANCE)
            short = NOMINAL_COVERAGE - worst
            of, limit, beyond = f"the shortfall of {_percent(short)} that is allowed", NOMINAL_COVERAGE - FACTOR * short, -1.0
        excess = beyond * (value - limit)
        chance = _CERTAIN * score.standard_errors.get(key, 0.0)
        yield ModelGate(
            pair=score.pair, flavour=score.flavour, family=score.family, model=score.model, quantity=quantity, value=value, limit=limit,
            status="pass" if excess <= 0 else "undetermined" if excess <= chance else "fail",
            yardstick=yardstick.name, because=f"{FACTOR:g} times {of}",
        )  # fmt: skip


def findings(model: Model, validation: Validation | None, gates: list[ModelGate]) -> list[Finding]:
    """Say of each pair's model whether it may be used: for ``check``, ``profile`` and the report."""
    out = []
    for pair in _remote(model):
        mine = [g for g in gates if (g.pair, g.flavour) == (pair.pair, pair.flavour)]
        name = f"pair {pair.pair} model" if pair.flavour == PLAIN else f"pair {pair.pair} model of {pair.flavour}"
        bad = [g for g in mine if g.status != "pass"]
        for gate in bad:
            status: Status = "fail" if gate.status == "fail" else "warn"
            more = "" if gate.status == "fail" else "; too few held-out bursts to say: xstage profile --full"
            out.append(Finding(name, status, gate.sentence() + more, _TRY[gate.quantity]))
        if mine and not bad:
            said = ", ".join(f"{g.quantity} {_percent(g.value)}" for g in mine if g.family != TINY)
            out.append(Finding(name, "ok", f"{mine[0].model} model on its hold-out: {said} (against {mine[0].yardstick})"))
        if not mine and pair.flavour == PLAIN:
            why = "it has no validation: xstage validate RUN" if validation is None else "no held-out schedule of it was measured"
            out.append(Finding(name, "warn", f"not judged: {why}", "measure the probe holdout too, then xstage fit and xstage validate"))
    return out


def with_verdicts(model: Model, gates: list[ModelGate]) -> Model:
    """Return the model with what its own hold-out said of each pair, so that predictions made elsewhere can say it too."""
    pairs = []
    for pair in model.pairs:
        mine = [g for g in gates if (g.pair, g.flavour) == (pair.pair, pair.flavour)] if pair in _remote(model) else []
        order: tuple[HoldoutStatus, ...] = ("fail", "undetermined", "pass")
        status: HoldoutStatus = next((s for s in order if any(g.status == s for g in mine)), "not_judged")
        reasons = [g.sentence() for g in mine if g.status == status and status != "pass"]
        pairs.append(replace(pair, holdout=HoldoutVerdict(status=status, yardstick=mine[0].yardstick, reasons=reasons) if mine else None))
    return replace(model, pairs=pairs)


def missed(model: Model) -> dict[str, HoldoutVerdict]:
    """Return the verdicts of the pairs whose model missed its hold-out, by "pair flavour"."""
    return {f"{p.pair} {p.flavour}": p.holdout for p in model.pairs if p.holdout is not None and p.holdout.status == "fail"}


def _remote(model: Model) -> list[PairModel]:
    return [p for p in model.pairs if not p.is_local and p.layout == "contiguous"]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %" if fraction < 1 else f"{100 * fraction:.0f} %"


def judged(model: Model, validation: Validation | None) -> tuple[Model, list[Finding]]:
    """Hold a model against what may be asked of it: the model with its verdicts, and what to say of it (`model_gate`).

    A validation of another fit judges nothing, and that is said.
    """
    if validation is not None and validation.fitted not in (None, digest(model)):
        stale = Finding("model", "warn", "not judged: validation.json is of another fit", "xstage validate RUN")
        return with_verdicts(model, []), [stale]
    gates = judge_model(model, validation)
    return with_verdicts(model, gates), findings(model, validation, gates)
