"""The whole of ``xstage profile``: measure a node, then fit, validate, judge, draw and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from xstage_bench.judge.gate import judged
from xstage_bench.measure.bursts import record_run
from xstage_bench.measure.launch import finished
from xstage_bench.model.run_fit import fit_run, require_fitted, usable_samples, validate_run, write_model, write_validation
from xstage_bench.record.reader import load_run
from xstage_bench.show.report import write_report_files

if TYPE_CHECKING:
    from xstage_bench.machine.finding import Finding
    from xstage_bench.measure.plan import Options
    from xstage_bench.measure.rounds import Progress
    from xstage_bench.model.document import Model, Validation
    from xstage_bench.record.reader import Run


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
        The new run folder, or with `resume` the interrupted one; one that was measured to the end is only derived from.
    argv : sequence of str
        For the manifest.
    progress : callable or None
    say : callable
        Told in one line what is done next.

    Returns
    -------
    Profiled
        Its run's manifest names the pairs that failed.

    Raises
    ------
    DataError
        Nothing was measured that a fit may use.
    """
    if resume and finished(folder):  # interrupted after the last sample: what is left is to derive
        say(f"{folder} was measured to the end")
        run = load_run(folder)
    else:
        say(f"measuring into {folder}")
        run = record_run(options, folder, argv, resume=resume, progress=progress)
    if usable_samples(run).empty and run.manifest.failed_pairs:
        return Profiled(run, None, None)
    say("fitting")
    model = fit_run(run)
    require_fitted(run, model)
    files = {"model": write_model(run, model)}
    say("validating on the held-out schedules")
    validation = validate_run(run, model)
    files["validation"] = write_validation(run, validation)
    model, findings = judged(model, validation)
    write_model(run, model)
    say("drawing the figures and the report")
    return Profiled(run, model, validation, files | write_report_files(run, model, validation), findings)
