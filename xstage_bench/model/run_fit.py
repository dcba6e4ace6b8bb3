"""A run folder's model and validation: fitted, judged on what was held out, found and written. Both files are replaceable."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from xstage_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from xstage_bench.model.document import Model, Validation
    from xstage_bench.model.node_pair import Found
    from xstage_bench.record.manifest import Manifest
    from xstage_bench.record.reader import Run

MODEL_NAME, VALIDATION_NAME = "model.json", "validation.json"
RESAMPLES = 200
_SPARE, _LARGE_RUN = 3, 100_000  # processors beside this one, and rows, from which further processes are worth their start
SIMULATED_MARK = " (simulated)"


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


def require_fitted(run: Run, model: Model) -> None:
    """Raise DataError when nothing was fitted, and say what became of the rows: an empty model is no success."""
    if not model.is_empty:
        return
    from xstage_bench.model.cells import HOLDOUT, asked_rows, valid_rows

    samples = usable_samples(run)
    measured, asked = samples[samples["kind"] == "measure"], asked_rows(samples)
    held = int(measured["probe"].isin(HOLDOUT).sum())
    invalid = len(asked) - len(valid_rows(asked))
    why = f"of {len(measured)} measured rows {held} are held out and {invalid} not valid"
    hint = "xstage run without --only"
    if held == len(measured):
        hint = f"xstage validate {run.folder} --model MODEL judges the model of another run on them"
    raise DataError(f"{run.folder} holds nothing that a fit may use: {why}", hint)


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


def usable_samples(run: Run) -> pd.DataFrame:
    """Return the samples in the order measured, without those of pairs that failed: they stay in the record, and no number is made of them.

    Written in any other order a run would give another fit: which schedules a search sees is drawn from their order.
    """
    samples = run.samples().sort_values(["order", "burst"], kind="stable", ignore_index=True)
    pair = samples["source"].astype(str) + ">" + samples["destination"].astype(str)
    return samples[~pair.isin(list(run.manifest.failed_pairs))]


def find_model(where: Path) -> Model:
    """Read the model named by a path, a model.json or the run folder that holds one, or by the name of a node of the registry.

    Raises
    ------
    UsageError
        Nothing is there, or the run has not been fitted.
    DataError
        Its content is no model.
    """
    from xstage_bench.model.document import load_model

    if not where.exists() and where.name == str(where) and not where.suffix:
        from xstage_bench.machine.gpus import entry_names
        from xstage_bench.model.scaled_node import registered_model

        if where.name in entry_names():
            return registered_model(where.name)
        raise UsageError(f"{where}: no such file, run folder or node", "xstage nodes lists the nodes that have a name")
    if where.is_dir():
        if not (where / MODEL_NAME).exists():
            raise UsageError(f"{where} holds no {MODEL_NAME}", f"xstage fit {where}")
        where = where / MODEL_NAME
    return load_model(where)


def find_validation(run: Run) -> Validation | None:
    """Read a run's validation.json, null when it has none."""
    from xstage_bench.model.document import load_validation

    path = run.folder / VALIDATION_NAME
    return load_validation(path) if path.exists() else None


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
