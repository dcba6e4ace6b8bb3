"""``xstage validate``: judge a model on the held-out schedules of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import STDOUT, Output, check_file, findings_text, table
from xstage_bench.cli.progress import at_work
from xstage_bench.errors import DataError

if TYPE_CHECKING:
    from xstage_bench.model.document import Validation


@click.command("validate", short_help="Judge the model on held-out schedules.")
@click.argument("run", type=FILE)
@click.option("--model", "model_path", type=FILE, metavar="FILE", help="A model.json, or a fitted run folder; default: that of RUN.")
@click.option("--out", "path", type=FILE, metavar="FILE", help="Where validation.json goes; default: into the run folder. - is stdout.")
@common
def command(out: Output, run: Path, model_path: Path | None, path: Path | None) -> int:
    """Compare predicted with measured issue times on the schedules of RUN that no fit has seen.

    Says what misses (docs/operate.md) and exits 0; xstage check RUN exits 4. Without --model and --out, model.json is told too.
    """
    from xstage_bench.io.json_file import encode_json
    from xstage_bench.judge.gate import judged
    from xstage_bench.model.document import save
    from xstage_bench.model.run_fit import VALIDATION_NAME, find_model, validate_run, write_model
    from xstage_bench.record.reader import load_run

    check_file(path)
    loaded = load_run(run)
    out.note_incomplete(loaded)
    model = find_model(loaded.folder if model_path is None else model_path)
    with at_work(f"validating {run}"):
        validation = validate_run(loaded, model)
    if not (validation.models or validation.families or validation.warps_apart):
        why = "; ".join(validation.notes) or "no held-out schedule is of a pair of the model, or none is valid"
        raise DataError(f"{loaded.folder}: nothing was judged: {why}", "xstage run with the probe holdout, then xstage fit")
    model, findings = judged(model, validation)
    if path is None and model_path is None:
        write_model(loaded, model)
    if path == STDOUT:
        out.raw(encode_json(validation))
        return 0
    path = loaded.folder / VALIDATION_NAME if path is None else path
    save(path, validation)
    document = {"validation": str(path), "simulated": loaded.manifest.simulated, "models": validation.models}
    document |= {"families": validation.families, "noise_floor": validation.noise_floor, "warps_apart": validation.warps_apart}
    document["model_gate"] = [asdict(f) for f in findings]
    out.result(document, f"{path}\n{scores(validation)}\n\n{findings_text(findings)}")
    return 0


def scores(validation: Validation) -> str:
    """Return the scores as a table; errors in percent."""
    head = ["model", "pair", "hold-out", "schedules", "bursts", "median error %", "p95 error %", "stall accuracy %"]
    rows = []
    others = [m for m in validation.families if m not in validation.models]
    for m in [*validation.models, *others, *validation.warps_apart]:
        errors = (m.issue_time.median_error, m.issue_time.p95_error, m.regime_balanced_accuracy)
        name = f"{m.model}, warps apart" if m in validation.warps_apart else m.model
        rows.append([name, m.pair, m.family, m.n_schedules, m.n_bursts, *map(_percent, errors)])
    return table(head, rows)


def _percent(fraction: float | None) -> str | None:
    return None if fraction is None else f"{100 * fraction:.1f}"
