"""``xstage fit``: fit the Burst-Gap model to a run folder."""

from __future__ import annotations

from pathlib import Path

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import STDOUT, Output, check_file, table
from xstage_bench.cli.progress import at_work


@click.command("fit", short_help="Fit a run folder.")
@click.argument("run", type=FILE)
@click.option("--out", "path", type=FILE, metavar="FILE", help="Where model.json goes; default: into the run folder. - is stdout.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of the resampling.")
@click.option("--resamples", type=click.IntRange(20, 100_000), default=200, show_default=True, help="Resamples behind each interval.")
@common
def command(out: Output, run: Path, path: Path | None, seed: int, resamples: int) -> int:
    """Fit issue time T0, drain rate R and outstanding capacity Q to RUN, with intervals. Held-out schedules are never read."""
    from xstage_bench.io.json_file import encode_json
    from xstage_bench.model.document import save
    from xstage_bench.model.headline import headline_rows
    from xstage_bench.model.run_fit import MODEL_NAME, fit_run, require_fitted
    from xstage_bench.record.reader import load_run

    check_file(path)
    loaded = load_run(run)
    out.note_incomplete(loaded)
    with at_work(f"fitting {run}"):
        model = fit_run(loaded, seed=seed, resamples=resamples)
    require_fitted(loaded, model)
    if path == STDOUT:
        out.raw(encode_json(model))
        return 0
    path = loaded.folder / MODEL_NAME if path is None else path
    save(path, model)
    rows = headline_rows(model)
    document = {"model": str(path), "backend": model.backend, "simulated": loaded.manifest.simulated, "headline": rows}
    out.result(document, f"{path}\n{numbers(rows)}")
    return 0


def numbers(rows: list[dict[str, object]]) -> str:
    """Return the headline numbers as a table."""
    return table(list(rows[0]), [list(row.values()) for row in rows]) if rows else "no pair could be fitted"
