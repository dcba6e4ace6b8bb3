"""From a run folder to what is derived from it, and the whole of ``xstage profile``. Derived files are replaceable and atomic."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xstage_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from xstage_bench.finding import Finding
    from xstage_bench.model.document import Model, Validation
    from xstage_bench.model.node_pair import Found
    from xstage_bench.model.predict import PredictedSchedule
    from xstage_bench.plan import Options
    from xstage_bench.record.manifest import Manifest
    from xstage_bench.record.reader import Run
    from xstage_bench.runner import Progress
    from xstage_bench.schedule import Schedule

MODEL_NAME, VALIDATION_NAME, FIGURES_NAME, REPORT_NAME = "model.json", "validation.json", "figures", "report.html"
RESAMPLES = 200
_SPARE, _LARGE_RUN = 3, 100_000  # processors beside this one, and rows, from which further processes are worth their start
SIMULATED_MARK = " (simulated)"


@dataclass(frozen=True, slots=True)
class Profiled:
    """What ``xstage profile`` made: the run, what was derived, and the files beside it. `model` is null when no pair was measured.

    `findings` say of each pair's model whether it may be used.
    """

    run: Run
    model: Model | None
    validation: Validation | None
    files: dict[str, Path] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def fit_run(run: Run, *, seed: int = 0, resamples: int = RESAMPLES, workers: int | None = None) -> Model:
    """Fit the Burst-Gap law and the node model to a run.

    Parameters
    ----------
    run : Run
    seed, resamples : int
    workers : int, optional
        Processes that fit node models, a pair each, while this one fits the law. The same numbers come out. Default: one for each pair
        where processors are free and the run is large enough to be worth their start, else none.

    Raises
    ------
    DataError
        The run holds no row that could enter a fit.
    """
    from xstage_bench.model.calibrate import calibrate
    from xstage_bench.model.node_pair import pairs_of, with_nodes

    node = run.manifest.node
    samples = usable_samples(run)
    if samples.empty:
        raise DataError(f"{run.folder} holds no samples of a pair that works", "measure again: xstage run")
    names = " + ".join(dict.fromkeys(gpu.name for gpu in node.gpus))
    label = backend_label(run.manifest)
    pairs = pairs_of(samples)
    with _node_fits(run, samples, pairs, seed, workers) as fits:
        model = calibrate(samples, backend=label, gpu=names, sm_clock_mhz=node.gpus[0].sm_clock_mhz, seed=seed, resamples=resamples)
        return with_nodes(model, fits())


@contextmanager
def _node_fits(
    run: Run, samples: pd.DataFrame, pairs: list[tuple[str, str]], seed: int, workers: int | None
) -> Iterator[Callable[[], Found]]:
    """Start the fits of all pairs; what is yielded waits for them and returns what was found."""
    from xstage_bench.model.node_pair import limit_of, node_models

    names = list(dict.fromkeys(pair for pair, _ in pairs))
    if workers is None:
        spare = (os.cpu_count() or 1) - 1
        workers = min(len(names), spare) if spare >= _SPARE and len(samples) >= _LARGE_RUN else 0
    limit = limit_of(pairs)

    def here() -> Found:
        return node_models(samples, run.producers(), _smids(run), pairs, limit=limit, seed=seed)

    if not workers or not names:
        yield here
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        started = [pool.submit(_fit_of, run.folder, [p for p in pairs if p[0] == name], limit, seed) for name in names]

        def found() -> Found:
            try:
                return {key: entry for fit in started for key, entry in fit.result().items()}
            except (BrokenProcessPool, OSError):  # no room for more processes, or one was killed
                return here()

        yield found


def _fit_of(folder: Path, pairs: list[tuple[str, str]], limit: int, seed: int) -> Found:
    """Fit the node models of some pairs of a run; in a process of its own."""
    from xstage_bench.model.node_pair import node_models
    from xstage_bench.record.reader import load_run

    run = load_run(folder)
    return node_models(usable_samples(run), run.producers(), _smids(run), pairs, limit=limit, seed=seed)


def _smids(run: Run) -> dict[int, Sequence[int]]:
    return {g.index: g.smids for g in run.manifest.node.gpus}


def backend_label(manifest: Manifest) -> str:
    """Return the backend as a model carries it: the replay of a simulated run says that it is simulated."""
    hidden = manifest.simulated and not manifest.backend.startswith("sim")
    return manifest.backend + (SIMULATED_MARK if hidden else "")


def is_simulated(model: Model) -> bool:
    """Whether a model was fitted on simulated samples."""
    return model.backend.startswith("sim") or model.backend.endswith(SIMULATED_MARK)


def validate_run(run: Run, model: Model) -> Validation:
    """Judge a model on a run's held-out schedules.

    Raises
    ------
    DataError
        The model was fitted on another backend: a simulated number must not be judged by a measured one.
    """
    from xstage_bench.model.validate import validate

    label = backend_label(run.manifest)
    if model.backend != label:
        raise DataError(f"the model is of backend {model.backend}, the run of {label}", f"fit this run: xstage fit {run.folder}")
    return validate(model, usable_samples(run))


def judged(model: Model, validation: Validation | None) -> tuple[Model, list[Finding]]:
    """Hold a model against what may be asked of it: the model with its verdicts, and what to say of it (`model_gate`).

    A validation of another fit judges nothing, and that is said.
    """
    from xstage_bench.finding import Finding
    from xstage_bench.model.document import digest
    from xstage_bench.model_gate import findings, judge_model, with_verdicts

    if validation is not None and validation.fitted not in (None, digest(model)):
        stale = Finding("model", "warn", "not judged: validation.json is of another fit", "xstage validate RUN")
        return with_verdicts(model, []), [stale]
    gates = judge_model(model, validation)
    return with_verdicts(model, gates), findings(model, validation, gates)


def usable_samples(run: Run) -> pd.DataFrame:
    """Return the samples in the order measured, without those of pairs that failed: they stay in the record, and no number is made of them.

    Written in any other order a run would give another fit: which schedules a search sees is drawn from their order.
    """
    samples = run.samples().sort_values(["order", "burst"], kind="stable", ignore_index=True)
    pair = samples["source"].astype(str) + ">" + samples["destination"].astype(str)
    return samples[~pair.isin(list(run.manifest.failed_pairs))]


def find_model(where: Path) -> Model:
    """Read the model named by a path: a model.json, or the run folder that holds one.

    Raises
    ------
    UsageError
        Nothing is there, or the run has not been fitted.
    DataError
        Its content is no model.
    """
    from xstage_bench.model.document import load_model

    if where.is_dir():
        if not (where / MODEL_NAME).exists():
            raise UsageError(f"{where} holds no {MODEL_NAME}", f"xstage fit {where}")
        where = where / MODEL_NAME
    return load_model(where)


def predict_schedules(
    model: Model, schedules: Sequence[Schedule], *, pair: str | None = None, sm_clock_mhz: float | None = None
) -> list[PredictedSchedule]:
    """Predict schedules with a model.

    Raises
    ------
    UsageError
        The model has no such pair or flavour, or a schedule has more producers than its GPU has SMs: every fit includes all SMs,
        so the largest count that it has seen is that of the GPU.
    """
    from xstage_bench.model.predict import pair_model, predict_all

    for schedule in schedules:
        seen = pair_model(model, schedule, pair).calibrated_range.producers
        if seen is not None and schedule.producer_count > seen[1]:
            raise UsageError(
                f"{schedule.producer_count} producers asked for, but the {model.gpu} of the model has {seen[1]} SMs",
                f"use at most {seen[1]} producers",
            )
    return predict_all(model, schedules, pair, sm_clock_mhz)


def find_validation(run: Run) -> Validation | None:
    """Read a run's validation.json, null when it has none."""
    from xstage_bench.model.document import load_validation

    path = run.folder / VALIDATION_NAME
    return load_validation(path) if path.exists() else None


def profile(
    options: Options,
    folder: Path,
    argv: Sequence[str],
    *,
    resume: bool,
    progress: Callable[[Progress], None] | None,
    say: Callable[[str], None],
) -> Profiled:
    """Measure a node and derive everything: run, fit, validation, figures, report.

    Parameters
    ----------
    options : Options
    folder : Path
        The new run folder, or with `resume` the interrupted one.
    argv : sequence of str
        For the manifest.
    progress : callable or None
    say : callable
        Told in one line what is done next.

    Returns
    -------
    Profiled
        Its run's manifest names the pairs that failed.
    """
    from xstage_bench.runner import record_run

    say(f"measuring into {folder}")
    run = record_run(options, folder, argv, resume=resume, progress=progress)
    if usable_samples(run).empty:
        return Profiled(run, None, None)
    say("fitting")
    model = fit_run(run)
    files = {"model": write_model(run, model)}
    say("validating on the held-out schedules")
    validation = validate_run(run, model)
    files["validation"] = write_validation(run, validation)
    model, findings = judged(model, validation)
    write_model(run, model)
    say("drawing the figures and the report")
    return Profiled(run, model, validation, files | write_report_files(run, model, validation), findings)


def write_model(run: Run, model: Model) -> Path:
    """Write model.json into the run folder."""
    from xstage_bench.model.document import save

    save(run.folder / MODEL_NAME, model)
    return run.folder / MODEL_NAME


def write_validation(run: Run, validation: Validation) -> Path:
    """Write validation.json into the run folder."""
    from xstage_bench.model.document import save

    save(run.folder / VALIDATION_NAME, validation)
    return run.folder / VALIDATION_NAME


def check_tables(run: Run) -> None:
    """Read every table of a run once, part by part.

    What draws or exports a run begins after this, so that a damaged part is refused before anything of the result is written.

    Raises
    ------
    DataError
        A part is not Parquet, cut short, or of another schema.
    """
    for table in ("samples", "producers", "traces"):
        for _ in run.arrow_parts(table):
            pass


def write_report_files(run: Run, model: Model, validation: Validation | None) -> dict[str, Path]:
    """Draw the figures and write the report into the run folder."""
    from xstage_bench.plot import draw_figures, read_once, render_figures
    from xstage_bench.report import write_report

    run = read_once(run)
    drawn = render_figures(run, model, validation)
    draw_figures(run, model, validation, run.folder / FIGURES_NAME, drawn=drawn)
    write_report(run, model, validation, run.folder / REPORT_NAME, drawn=drawn)
    return {"figures": run.folder / FIGURES_NAME, "report": run.folder / REPORT_NAME}


def headline(model: Model) -> list[dict[str, Any]]:
    """Return the three numbers of each pair with all its producers, one row for each warp count that was fitted."""
    rows = []
    for pair in model.pairs:
        most = max((entry.producers for entry in pair.burst_gap), default=0)
        for entry in pair.burst_gap:
            if entry.producers == most:
                row = {"pair": pair.pair, "producers": entry.producers, "warps": entry.warps, "bytes": entry.bytes}
                numbers = {"t0_cycles": entry.t0_cycles, "drain_gb_per_s": entry.drain_gb_per_s, "capacity_bytes": entry.capacity_bytes}
                rows.append(row | {name: estimate.value for name, estimate in numbers.items()})
    return rows
