"""``xstage measure scenes``: several schedules at the same time, and the company they keep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.options import FILE, common, surveying
from xstage_bench.cli.output import Output, table
from xstage_bench.cli.survey import measuring_into, show
from xstage_bench.errors import UsageError

if TYPE_CHECKING:
    from xstage_bench.schedule.device import Node
    from xstage_bench.schedule.scenes import Scene

#: Families of scenes, each as ``scenes --study NAME`` or by its own name.
STUDIES = ("patterns", "directions", "pairs_at_once", "several_peers", "pulls", "local", "gap_work", "producers_per_sm", "host")
COMPANY = ("pulls", "local", "gap_work", "producers_per_sm")
PATTERNS = ("pair", "both_directions", "fan_out", "incast", "all_to_all", "ring")


@click.command("scenes", short_help="Measure several schedules at once.")
@surveying
@click.option("--pattern", "patterns", type=click.Choice(PATTERNS), multiple=True, help="Who stores to whom; repeatable.")
@click.option("--scene", "files", type=FILE, multiple=True, metavar="FILE", help="The scenes of this file (JSON or CSV); repeatable.")
@click.option("--study", "studies", type=click.Choice(STUDIES), multiple=True, help="A family of scenes (docs/measure.md); repeatable.")
@click.option("--source", type=click.IntRange(0), default=0, show_default=True, help="Of pair, both_directions, fan_out.")
@click.option("--destination", type=click.IntRange(-1), help="Of pair (-1: host memory), both_directions (default 1), incast (default 0).")
@click.option("--bytes", "size", type=click.IntRange(1), default=1 << 20, show_default=True, help="Per SM and burst.")
@click.option("--bursts", type=click.IntRange(1, 128), default=1, show_default=True, help="Bursts of each schedule.")
@click.option("--gap", type=click.IntRange(0), default=0, show_default=True, metavar="CYCLES", help="Between two bursts.")
@click.option("--warps", type=click.IntRange(1, 16), default=4, show_default=True, help="Per SM.")
@click.option("--repetitions", type=click.IntRange(1, 1000), default=24, show_default=True, help="Of each scene, over all processes.")
@common
def command(out: Output, spec: str, path: Path | None, repetitions: int, processes: int, quick: bool, seed: int, **chosen: Any) -> int:
    """Measure scenes: several schedules executed at the same time by several GPUs.

    Without --pattern and --study every pattern is measured, or stores to host memory where there is one GPU. Pairs that cannot be
    reached are left out and named with the reason.
    """
    from xstage_bench.device.backend import resolve_backend
    from xstage_bench.measure.scenes import measure_scenes

    count: dict[str, Any] = {"repetitions": min(repetitions, 6) if quick else repetitions, "processes": 1 if quick else processes}
    with measuring_into(out, path) as kept:
        choice = resolve_backend(spec, expect_links=chosen.pop("expect_links"))
        out.note_backend(choice)
        document = measure_scenes(choice, lambda node: _scenes(node, **chosen), seed=seed, **count, **kept)
    return show(out, path, document, scenes_text(document))


def _scenes(
    node: Node, *, patterns: tuple[str, ...], studies: tuple[str, ...], files: tuple[Path, ...], source: int, destination: int | None,
    size: int, bursts: int, gap: int, warps: int,
) -> list[Scene]:  # fmt: skip
    from xstage_bench.schedule import patterns as known
    from xstage_bench.schedule import studies as company
    from xstage_bench.schedule.bursts import Burst

    if files:
        from xstage_bench.schedule.scene_files import expanded, load_scenes

        if patterns or studies:
            raise UsageError("--scene brings its own scenes", "leave out --pattern and --study")
        return [expanded(entry, node) for path in files for entry in load_scenes(path)]
    course = tuple(Burst(size, gap) for _ in range(bursts))
    ends: dict[str, Any] = {"warps": warps, "source": source}
    if destination is not None:
        ends["destination"] = destination
    if len(node.gpus) < 2 and not patterns and not studies:
        return company.host(node)
    scenes = [known.PATTERNS[name](node, course, **ends) for name in (patterns or (() if studies else PATTERNS))]
    return scenes + [scene for name in studies for scene in company.STUDIES[name](node)]


def scenes_text(document: dict[str, Any]) -> str:
    """Return the table of a document of scenes."""
    rows = []
    for row in document["rows"]:
        for s in row.get("schedules", []):
            gap = s["gap_mean_cycles"].value
            numbers = [s["gb_per_s"].value, s["issue_mean_cycles"].value, gap, s["drain_mean_cycles"].value]
            rows.append([row["name"], f"{s['source']}>{s['destination']}", s["producers"], s["bytes"], *numbers, row["overlap"]])
        for c in row.get("company", []):
            rows.append([row["name"], f"{c['kind']} {c['gpu']}<{c['other']}", c["sms"], None, c["gb_per_s"].value, None, None, None, None])
    head = ["scene", "what", "SMs", "bytes", "GB/s", "issue cycles", "gap cycles", "drain cycles", "overlap"]
    kind = f"backend {document['backend']}" + (", SIMULATED" if document["simulated"] else "")
    return f"{kind}\n\n{table(head, rows)}"
