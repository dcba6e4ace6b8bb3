"""``xstage report``: the figures and one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from xstage_bench.cli.options import FILE, common
from xstage_bench.cli.output import STDOUT, Output, check_file
from xstage_bench.cli.progress import at_work


@click.command("report", short_help="Draw figures, write one HTML page.")
@click.argument("run", type=FILE)
@click.option("--model", "model_path", type=FILE, metavar="FILE", help="A model.json, or a fitted run folder; default: that of RUN.")
@click.option("--out", "path", type=FILE, metavar="FILE", help="Only the page, here (- is stdout); default: page and figures/ into RUN.")
@common
def command(out: Output, run: Path, model_path: Path | None, path: Path | None) -> int:
    """Draw the figures of RUN and write a report that opens in any browser, without a network.

    RUN may also be a document that `xstage measure` or a replay wrote: its page then stands beside it.
    """
    from xstage_bench.model.run_fit import find_model, find_validation, require_fitted
    from xstage_bench.record.reader import check_tables, load_run
    from xstage_bench.show.report import render_report, write_report, write_report_files

    out.no_json_beside(path, "HTML")
    check_file(path)
    if run.is_file():
        return _survey(out, run, path)
    loaded = load_run(run)
    out.note_incomplete(loaded)
    with at_work(f"reading the model of {run}"):  # fits where there is none
        model = find_model(loaded.folder if model_path is None else model_path)
    validation = find_validation(loaded)
    check_tables(loaded)
    require_fitted(loaded, model)
    files: dict[str, Path] = {}
    if path is None:
        with at_work(f"drawing the figures of {run}"):
            files = write_report_files(loaded, model, validation)
    elif path == STDOUT:
        out.raw(render_report(loaded, model, validation).encode(errors="backslashreplace"))
        return 0
    else:
        with at_work(f"drawing the figures of {run}"):
            write_report(loaded, model, validation, path)
        files = {"report": path}
    document = {"run": str(loaded.folder), "simulated": loaded.manifest.simulated, "files": {k: str(v) for k, v in files.items()}}
    out.result(document, "\n".join(str(file) for file in files.values()))
    return 0


def _survey(out: Output, document: Path, path: Path | None) -> int:
    from xstage_bench.measure.survey import read_survey
    from xstage_bench.show.survey_page import render_survey, write_survey_page

    if path == STDOUT:
        out.raw(render_survey(read_survey(document), document.name).encode(errors="backslashreplace"))
        return 0
    page = write_survey_page(document, path)
    out.result({"document": str(document), "files": {"report": str(page)}}, str(page))
    return 0
