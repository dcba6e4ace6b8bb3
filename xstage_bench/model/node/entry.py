"""The node model of one pair as it is stored, and the one call that makes it from a run's tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from xstage_bench.errors import DataError
from xstage_bench.model.arrays import IntArray
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.node.calibrate import fit_measured, guess
from xstage_bench.model.node.data import ALONE_PROBES, CALIBRATION_PROBES, IRREGULAR_PROBE, ISSUE_PROBES, measured
from xstage_bench.model.node.infer import infer_placement
from xstage_bench.model.node.intervals import ResidualQuantiles, learn_spread
from xstage_bench.model.node.issue import BORROWED, IssueLaw
from xstage_bench.model.node.issue_fit import fit_issue
from xstage_bench.model.node.parameters import PARAMETERS, NodeModel
from xstage_bench.model.node.placement import Placement, uniform
from xstage_bench.model.node.targets import LIMIT, choose

if TYPE_CHECKING:
    import pandas as pd


#: Where fits of bulk copies begin: half of what ordinary stores have under way, since the rest waits in their queue; and all of it.
_BULK_STARTS: tuple[dict[str, float], ...] = (
    {"sm_capacity_bytes": 8500.0, "unit_capacity_bytes": 17000.0, "credit_cycles": 650.0, "link_buffer_bytes": 150000.0},
    {},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBasis:
    """What a pair's node model stands on beside its eight estimates: enough to predict with it.

    Parameters
    ----------
    used : dict of str to float
        What predictions use: the estimate, or the value kept where there is none.
    placement : Placement
        The measured map of smid to arbitration unit.
    sm_clock_mhz : float
    spread : ResidualQuantiles or None
        Of the prediction intervals; None when nothing was left to learn it on.
    issue : IssueLaw
        Constants of the instrument.
    n_schedules : int
        In the fit.
    notes : list of str
    """

    used: dict[str, float]
    placement: Placement
    sm_clock_mhz: float
    spread: ResidualQuantiles | None
    issue: IssueLaw
    n_schedules: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry(NodeBasis):
    """The node model of one ordered pair and flavour: plain values only, so that msgspec writes and reads it as strict JSON.

    Parameters
    ----------
    pair, flavour : str
    node : dict of str to Estimate
        The eight parameters; null where the data did not identify one.
    """

    pair: str
    flavour: str
    node: dict[str, Estimate]


def calibrate_node(
    samples: pd.DataFrame,
    producers: pd.DataFrame,
    source: int,
    destination: int,
    smids: IntArray,
    *,
    flavour: str = "st.v4",
    placement: Placement | None = None,
    limit: int = LIMIT,
    seed: int = 0,
) -> NodeEntry:
    """Infer the map, fit the parameters and learn the intervals of one pair.

    Parameters
    ----------
    samples, producers : DataFrame
        As in docs/files.md. Probes used: placement (the map), `CALIBRATION_PROBES`, and `IRREGULAR_PROBE` for the intervals. Held-out
        probes are never looked at.
    source, destination : int
    smids : ndarray of int
        All smids of the source GPU.
    flavour : str
    placement : Placement, optional
        The map, if it has been inferred already.
    limit, seed : int
        Schedules in the fit, and which.

    Returns
    -------
    NodeEntry
        Without placement data the map is `uniform` and a note says so.

    Raises
    ------
    DataError
        Too few schedules of the calibration probes.
    """
    notes = []
    if placement is None:
        try:
            placement = infer_placement(samples, producers, source, smids)
        except DataError as error:
            placement = uniform(smids)
            notes.append(f"the map of SMs is a guess: {error.message}")
    data = measured(samples, source, destination, CALIBRATION_PROBES, flavour)
    if len(data.keys) < len(PARAMETERS):
        raise DataError(
            f"{source}>{destination}: {len(data.keys)} schedules of the probes {', '.join(CALIBRATION_PROBES)}", "measure them: xstage run"
        )
    # What issuing costs belongs to the SM and the compiler: measured by this run, or borrowed and said so (docs/method.md).
    pace, start = None, None
    if flavour != "st.v4" or not {*ISSUE_PROBES}.isdisjoint(data.probes):
        law, pace = fit_issue(data, flavour)
        start = guess(data, placement, law, pace.value)
    else:
        notes.append(BORROWED)
    fixed = [] if pace is None else ["issue_cycles_per_store"]
    chosen = choose(data.take([i for i, name in enumerate(data.probes) if name not in ALONE_PROBES]), limit, seed)
    if start is not None and start.issue.engine_operations:
        # Read off one SM alone, the engine's rate moves no burst any more. Two starts, since the capacities trade off against the queue.
        start = replace(start, sm_bytes_per_cycle=start.issue.store_bytes / start.issue.engine_cycles)
        known = dict(zip(PARAMETERS, start.values(), strict=True))
        starts = [start.with_values([(known | more)[name] for name in PARAMETERS]) for more in _BULK_STARTS]
        fits = [fit_measured(chosen, placement, first, [*fixed, "sm_bytes_per_cycle"]) for first in starts]
        fit = min(fits, key=lambda f: f.cost)
    else:
        fit = fit_measured(chosen, placement, start, fixed)
    if len(data.by_process) < 2:
        notes.append("one process: the intervals leave out the spread between processes")
    return NodeEntry(
        pair=f"{source}>{destination}",
        flavour=flavour,
        node=fit.estimates if pace is None else {**fit.estimates, "issue_cycles_per_store": pace},
        used={name: float(v) for name, v in zip(PARAMETERS, fit.model.values(), strict=True)},
        placement=placement,
        sm_clock_mhz=fit.model.sm_clock_mhz,
        spread=learn_spread(fit, data, measured(samples, source, destination, (IRREGULAR_PROBE,), flavour), seed),
        issue=fit.model.issue,
        n_schedules=len(fit.schedules),
        notes=notes,
    )


def model_of(entry: NodeEntry) -> NodeModel:
    """Return the model that an entry describes.

    Raises
    ------
    DataError
        A parameter is missing or out of its range.
    """
    for name, spec in PARAMETERS.items():
        value = entry.used.get(name)
        if value is None or not spec.low <= value <= spec.high:
            wanted = f"{spec.low:g} to {spec.high:g}"
            raise DataError(f"{entry.pair}: node parameter {name} is {value}, must be {wanted}", "fit again: xstage fit")
    first = {name: float(entry.used[name]) for name in PARAMETERS}
    return NodeModel(**first, placement=entry.placement, sm_clock_mhz=entry.sm_clock_mhz, issue=entry.issue)
