"""The report: one HTML file that holds its figures and loads nothing, from a run, its model and its validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.identity import in_words
from xstage_bench.judge.gate import judged
from xstage_bench.judge.yardstick import marks
from xstage_bench.measure.copies import load_copies
from xstage_bench.model.document import digest
from xstage_bench.model.headline import headline_entry, headline_rate
from xstage_bench.schedule.bursts import HOST
from xstage_bench.show.figures import Drawn, draw_figures, gpu_names, image_bytes, read_once, render_figures
from xstage_bench.show.html import Table, data_url, render
from xstage_bench.show.report_tables import (
    MISSING,
    copies_table,
    estimate,
    gate_tables,
    gpu_table,
    number,
    parameter_tables,
    percent,
    status_table,
    validation_tables,
    verdict_table,
)
from xstage_bench.show.verdict import answer, arrow, author_table, matrix, ranked
from xstage_bench.show.whatif import as_script_data, script, whatif_data

if TYPE_CHECKING:
    from xstage_bench.machine.finding import Finding
    from xstage_bench.model.document import Model, Validation
    from xstage_bench.record.manifest import Manifest
    from xstage_bench.record.reader import Run

#: A figure of more points than this makes is smaller as PNG.
LARGEST_SVG_BYTES = 260_000
FIGURES_NAME, REPORT_NAME = "figures", "report.html"


def write_report(
    run: Run, model: Model, validation: Validation | None, out: Path, extra_dirs: Sequence[Path] = (), drawn: Sequence[Drawn] | None = None
) -> None:
    """Write the report of a run, whole or not at all.

    Parameters
    ----------
    run : Run
    model : Model
        Fitted on that run.
    validation : Validation or None
        Null when nothing was held out; the report says so.
    out : Path
        The HTML file; replaced when it exists.
    extra_dirs : sequence of Path
        Folders of further figures.
    drawn : sequence of Drawn, optional
        What `render_figures` gave for the same run, to save drawing twice.
    """
    write_bytes(out, render_report(run, model, validation, extra_dirs, drawn).encode(errors="backslashreplace"))


def render_report(
    run: Run, model: Model, validation: Validation | None, extra_dirs: Sequence[Path] = (), drawn: Sequence[Drawn] | None = None
) -> str:
    """Return the report as HTML. Every text from the run is escaped; the same input gives the same bytes."""
    run = read_once(run)
    if drawn is None:
        drawn = render_figures(run, model, validation, extra_dirs=extra_dirs)
    manifest = run.manifest
    told, judgement = judged(model, validation)
    play = whatif_data(told, ranked(model, manifest))
    return render(
        "report.html.j2", name=run.name, gpus=gpu_names(run), manifest=manifest, answer=answer(model, manifest, judgement),
        author=author_table(model, manifest), matrix=matrix(model, manifest), quality=quality(model, validation, manifest),
        next=next_command(run, validation), play=as_script_data(play) if play["pairs"] else "",
        scripts=script("node.js") + script("whatif.js"), sentences=verdict_sentences(model, manifest),
        warnings=[*warnings(model, validation, manifest), *missed_words(judgement)], notes=[*manifest.notes, *model.notes],
        verdict=verdict_table(model, manifest), yardsticks=copies_table(load_copies(run.folder), manifest), scale=scale(model, manifest),
        statuses=status_table(run.samples()), parameters=parameter_tables(model),
        validations=[*validation_tables(validation), *gate_tables(judgement)], figures=[_figure(d) for d in drawn],
        gpu_facts=gpu_table(manifest), provenance=provenance(model, manifest),
    )  # fmt: skip


def quality(model: Model, validation: Validation | None, manifest: Manifest) -> str:
    """Say how good the model of the slowest pair is on schedules that it has not seen, with its tail."""
    slowest = next(iter(ranked(model, manifest)), None)
    if slowest is None or validation is None or validation.fitted not in (None, digest(model)):
        return ""
    form = "burst_gap" if slowest.node_basis is None else "node"
    mine = (s for s in validation.models if (s.pair, s.flavour, s.model) == (slowest.pair, slowest.flavour, form))
    score = next((s.issue_time for s in mine if s.issue_time.median_error is not None), None)
    if score is None:
        return ""
    errors = f"{percent(score.median_error)} (median), {percent(score.p95_error)} (95 %)"
    return f"The model of {arrow(slowest.pair)} misses unseen bursts by {errors}."


def next_command(run: Run, validation: Validation | None) -> str:
    """Return what to type next: finish, fit and judge what is not, else ask whether the node is in order."""
    if not run.manifest.complete:
        return f"xstage run --resume --out {run.name}"
    if validation is None:
        return f"xstage validate {run.name}"
    return f"xstage check {run.name}"


def verdict_sentences(model: Model, manifest: Manifest) -> list[str]:
    """Say in one sentence per pair what was found, at most four; the table has all."""
    found = []
    for pair in model.pairs:
        line = manifest.node.line_rate(pair.pair)
        rate, entry = headline_rate(pair), headline_entry(pair)
        if pair.is_local or pair.pair in manifest.failed_pairs or rate is None or rate[0].value is None:
            continue
        source, _, destination = pair.pair.partition(">")
        where = "host memory" if destination == str(HOST) else f"GPU {destination}"
        text = f"GPU {source} → {where}: remote stores of {rate[1]} SMs drain at {estimate(rate[0])} GB/s"
        if line is not None:
            text += f", {percent(rate[0].value / line, 0)} of the line rate"
        if entry is not None and entry.capacity_bytes_per_producer.value is not None:
            text += f"; an SM can have {estimate(entry.capacity_bytes_per_producer, 1e3)} kB outstanding before issuing stalls"
        elif entry is not None:
            reason = entry.capacity_bytes.reason or "no burst saturated"
            text += f"; the outstanding capacity was not identified ({reason})"
        found.append(text + ".")
    if len(found) > 4:
        found[4:] = [f"{len(found) - 4} more pairs: see the table."]
    return found


def scale(model: Model, manifest: Manifest) -> dict[str, Any]:
    """Return how good the slowest pair is: its rate beside the link, the payload limit, the datasheet, the copy engine, a reference."""
    pairs = [p for p in model.pairs if not p.is_local and p.pair not in manifest.failed_pairs and not p.pair.endswith(f">{HOST}")]
    scales = {p.pair: found for p in pairs if (found := marks(p, manifest))}
    if not scales:
        return {"marks": []}

    def achieved(pair: str) -> float:
        return next(m.gb_per_s for m in scales[pair] if m.name == "achieved")

    slowest = min(scales, key=achieved)
    found, rate = scales[slowest], achieved(slowest)
    longest = max(m.gb_per_s for m in found)
    shares = [f"{percent(rate / m.gb_per_s, 0)} of {m.name} ({number(m.gb_per_s)})" for m in found if m.name != "achieved"]
    which = "Pair" if len(scales) == 1 else f"The slowest of {len(scales)} pairs,"
    sentence = f"{which} {slowest.replace('>', ' → ')}: achieved {number(rate)} GB/s" + (f", {', '.join(shares)}." if shares else ".")
    rows = [[m.name, number(m.gb_per_s), percent(rate / m.gb_per_s, 0), m.origin, m.meaning] for m in found]
    return {
        "marks": [{"name": m.name, "rate": number(m.gb_per_s), "width": f"{100 * m.gb_per_s / longest:.1f}%"} for m in found],
        "sentence": sentence,
        "alternative": f"Bars of the rates in the table below: {sentence}",
        "table": Table("Achieved over what the link could give", ["rate", "GB/s", "achieved / it", "origin", "meaning"], rows),
    }


def warnings(model: Model, validation: Validation | None, manifest: Manifest) -> list[str]:
    """Return what a reader must know before using a number."""
    found = []
    if not manifest.complete:
        found.append("The run was interrupted: it is incomplete. `xstage run --resume` finishes it.")
    found += [f"Pair {key.replace('>', ' → ')} failed and has no numbers: {why}" for key, why in sorted(manifest.failed_pairs.items())]
    found += [f"Pair {key.replace('>', ' → ')} cannot be used: {why}" for key, why in sorted((manifest.node.unusable or {}).items())]
    for uuid, risen in (manifest.link_error_deltas or {}).items():
        errors = {k: risen.get(k) for k in ("replay", "recovery", "crc") if risen.get(k)}
        if errors:
            found.append(
                f"NVLink error counters of {uuid} rose during the run: " + ", ".join(f"{k} by {v}" for k, v in errors.items()) + "."
            )
    if all(headline_rate(p) is None for p in model.pairs if not p.is_local):
        found.append("No drain rate could be determined: there are no valid samples, or no burst saturated.")
    if validation is None:
        found.append("There is no validation: nothing was held out, so the model's error is not known.")
    return found


def missed_words(findings: Sequence[Finding]) -> list[str]:
    """Return one warning per statistic of a model that missed its own hold-out."""
    missed = [f for f in findings if f.status == "fail"]
    return [f"The {f.check.replace('>', ' → ')} missed its own hold-out: {f.detail}." for f in missed]


def provenance(model: Model, manifest: Manifest) -> Table:
    """Return when, with what and how the run was made."""
    environment = manifest.environment_before or {}
    driver = environment.get("nvml") or {}
    rows = [
        ("backend", manifest.backend + (" (SIMULATED)" if manifest.simulated else "")),
        ("started, finished (UTC)", f"{manifest.created}, {manifest.finished or 'not finished'}"),
        ("driver, CUDA", f"{driver.get('driver') or MISSING}, {driver.get('cuda') or MISSING}"),
        ("SM clock of the model", f"{number(model.sm_clock_mhz, 4)} MHz"),
        ("%globaltimer tick", f"{number(manifest.node.timer_tick_ns)} ns"),
        ("line rate per direction", f"{number(manifest.node.line_rate_gb_per_s)} GB/s"),
        ("command", " ".join(manifest.argv) or MISSING),
        ("seed", str(manifest.seed)),
        ("schedules, executions, rows", ", ".join(number(manifest.counts.get(k), 9) for k in ("schedules", "executions", "rows"))),
        ("wall time", MISSING if manifest.wall_s is None else f"{number(manifest.wall_s)} s"),
        ("hash of cuda/", manifest.cuda_sources or MISSING),
        ("kernels", "; ".join(in_words(manifest.kernels)) or MISSING),
        ("versions", ", ".join(f"{k} {v}" for k, v in manifest.versions.items() if v) or MISSING),
    ]
    if model.timer is not None:
        rows.append(("cost of the two clock reads", f"{estimate(model.timer.clock_read_cycles)} cycles"))
        rows.append(("fence with nothing outstanding", f"{estimate(model.timer.empty_fence_cycles)} cycles"))
    return Table("Provenance", ["what", "value"], [list(row) for row in rows])


def _figure(drawn: Drawn) -> dict[str, Any]:
    """Return what the template needs of one figure."""
    source, finding = None, drawn.spec.title
    if drawn.figure is not None:
        finding = str(drawn.figure.get_label()) or finding
        data, kind = image_bytes(drawn, "svg"), "svg+xml"
        if len(data) > LARGEST_SVG_BYTES:
            data, kind = image_bytes(drawn, "png"), "png"
        source = data_url(data, kind)
    return {
        "spec": drawn.spec,
        "finding": finding,
        "alt": f"{finding}: {drawn.spec.caption}",
        "source": source,
        "reason": drawn.reason,
        "failed": drawn.failed,
    }


def write_report_files(run: Run, model: Model, validation: Validation | None) -> dict[str, Path]:
    """Draw the figures and write the report into the run folder."""
    run = read_once(run)
    drawn = render_figures(run, model, validation)
    draw_figures(run, model, validation, run.folder / FIGURES_NAME, drawn=drawn)
    write_report(run, model, validation, run.folder / REPORT_NAME, drawn=drawn)
    return {"figures": run.folder / FIGURES_NAME, "report": run.folder / REPORT_NAME}
