"""``xstage nodes``: the registry of GPUs and links, what it knows of each, and one's own node in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xstage_bench.cli.group import one_of
from xstage_bench.cli.options import FILE, NODE, common
from xstage_bench.cli.output import Output, table
from xstage_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from xstage_bench.machine.facts import Fact
    from xstage_bench.machine.gpus import RegisteredNode

_LIBRARIES = ("deep_ep", "nccl", "tilelink")
_LISTED = ("drain_gb_per_s", "sm_gb_per_s", "sm_capacity_bytes")


class _Verbs(click.Group):
    """Refuses an unknown word by naming the nearest."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        one_of("verb of nodes", args, self.commands, ctx)
        return super().resolve_command(ctx, args)


@click.group("nodes", cls=_Verbs, invoke_without_command=True, short_help="GPUs and links that have a name.")
@click.pass_context
@common
def command(out: Output, ctx: click.Context) -> int:
    """List nodes by name, for MODEL and --backend sim:NAME."""
    if ctx.invoked_subcommand is not None:
        return 0
    from xstage_bench.machine.gpus import entries
    from xstage_bench.machine.scaling import completed_stage

    found = entries().values()
    rows: list[list[object]] = []
    for e in found:
        stage = completed_stage(e.facts)
        cells = [x for name in _LISTED for x in (getattr(stage, name).value, getattr(stage, name).status)]
        rows.append([e.name, e.facts.sm_count.value, *cells, "own" if e.facts.model else "scaled", e.origin])
    head = ["node", "SMs", "R GB/s", "", "one SM GB/s", "", "one SM holds B", "", "model", "from"]
    out.result({"nodes": [_document(e) for e in found]}, table(head, rows))
    return 0


@command.command("show", short_help="Every number of a node, and how it is known.")
@click.argument("name", type=NODE)
@common
def show(out: Output, name: str) -> int:
    """Show value, interval, kind and source of every number."""
    from xstage_bench.machine.gpus import find_entry

    document = _document(find_entry(name))
    lines = [f"{name}: {', '.join(document['names']) or 'no GPU is known to say this name'}"]
    lines += [f"  {key:<28} {fact.words()}" for key, fact in _facts(find_entry(name)).items() if fact.value is not None]
    missing = [key for key, fact in _facts(find_entry(name)).items() if fact.value is None]
    out.result(document, "\n".join(lines) + (f"\n  unknown: {', '.join(missing)}" if missing else ""))
    return 0


@command.command("args", short_help="What another library asks of a node.")
@click.argument("name", type=NODE)
@click.option("--for", "library", type=click.Choice(_LIBRARIES), required=True, help="Whose arguments.")
@click.option("--ranks", type=click.IntRange(min=2), default=8, show_default=True, metavar="N", help="GPUs that exchange.")
@common
def args(out: Output, name: str, library: str, ranks: int) -> int:
    """Print a library's arguments for a node, with their formulas."""
    from dataclasses import asdict

    from xstage_bench.machine.gpus import find_entry
    from xstage_bench.machine.scaling import completed_stage
    from xstage_bench.model.run_fit import find_model
    from xstage_bench.model.scaled_node import rules_used
    from xstage_bench.show.export.arguments import arguments

    stage = completed_stage(find_entry(name).facts)
    found = arguments(library, stage, find_model(Path(name)), ranks)
    rules = rules_used(stage)
    if rules:
        out.note(f"SCALED: some numbers of {name} were not measured: xstage nodes show {name}")
    text = "\n".join(f"{a.name}={a.value:g}\n  {a.formula}\n  {a.source}" for a in found)
    out.result({"node": name, "library": library, "ranks": ranks, "arguments": [asdict(a) for a in found], "scaled": rules}, text)
    return 0


def _require_name(name: str, example: str) -> None:
    from xstage_bench.machine.gpus import is_name

    if not is_name(name):
        raise UsageError(f"'{name}' is no name for a node", f"small letters, digits, dots and dashes: {example}")


@command.command("add", short_help="Make a node of your own from a run.")
@click.argument("run", type=FILE)
@click.option("--name", required=True, metavar="NAME", help="For example h100-nv18-mine.")
@click.option("--out", "folder", type=FILE, metavar="DIR", help="Default: ~/.config/xstage-bench/nodes.")
@common
def add(out: Output, run: Path, name: str, folder: Path | None) -> int:
    """Write the fitted run RUN as a node of your own."""
    from xstage_bench.io.atomic import write_bytes
    from xstage_bench.machine.gpus import entry_names, user_folder
    from xstage_bench.model.document import save
    from xstage_bench.model.run_fit import find_model
    from xstage_bench.record.reader import load_run
    from xstage_bench.show.export.node_entry import entry_of, entry_toml

    _require_name(name, "h100-nv18-mine")
    where = folder or user_folder()
    if name in entry_names() or (where / f"{name}.toml").exists():
        raise UsageError(f"there is a node '{name}' already", f"choose another name, or remove {where / name}.toml")
    model = find_model(run)
    text = entry_toml(entry_of(load_run(run).manifest, model, f"{name}.model.json"))
    where.mkdir(parents=True, exist_ok=True)
    save(where / f"{name}.model.json", model)
    write_bytes(where / f"{name}.toml", text.encode())
    out.result({"node": name, "file": str(where / f"{name}.toml")}, f"{where / name}.toml\n\nxstage nodes show {name}")
    return 0


@command.command("submit", short_help="Pack what of a run is worth contributing.")
@click.argument("run", type=FILE)
@click.option("--name", required=True, metavar="NAME", help="For example h100-nv18-x8.")
@click.option("--out", "path", type=FILE, metavar="FILE", help="Default: NAME.tar.gz.")
@common
def submit(out: Output, run: Path, name: str, path: Path | None) -> int:
    """Pack RUN without hosts, users, paths, UUIDs and PCI addresses: checked."""
    from xstage_bench.io.atomic import write_bytes
    from xstage_bench.model.run_fit import find_model, find_validation
    from xstage_bench.record.reader import load_run
    from xstage_bench.show.export.node_entry import WHERE, contribution, packed

    _require_name(name, "h100-nv18-x8")
    loaded = load_run(run)
    if loaded.manifest.failed_pairs:
        raise DataError(f"{run}: pairs failed: {', '.join(loaded.manifest.failed_pairs)}", f"xstage check {run} must exit 0")
    files = contribution(name, loaded.manifest, find_model(run), find_validation(loaded))
    to = path or Path(f"{name}.tar.gz")
    write_bytes(to, packed(files))
    sizes = {file: len(data) for file, data in files.items()}
    out.result({"file": str(to), "files": sizes, "where": WHERE}, f"{to}: {', '.join(files)}\n{WHERE}")
    return 0


def _facts(entry: RegisteredNode) -> dict[str, Fact]:
    """Every fact of an entry by its dotted name, those of the stage completed."""
    from xstage_bench.machine.facts import Fact
    from xstage_bench.machine.scaling import completed_stage

    found: dict[str, Fact] = {}

    def walk(part: Any, head: str) -> None:
        names = part if isinstance(part, dict) else part.__struct_fields__
        for name in names:
            value = part[name] if isinstance(part, dict) else getattr(part, name)
            if isinstance(value, Fact):
                found[head + name] = value
            elif isinstance(value, dict) or hasattr(value, "__struct_fields__"):
                walk(completed_stage(entry.facts) if name == "stage" else value, f"{head}{name}.")

    walk(entry.facts, "")
    return found


def _document(entry: RegisteredNode) -> dict[str, Any]:
    import msgspec

    facts = {name: msgspec.to_builtins(fact) for name, fact in _facts(entry).items()}
    head = {"name": entry.name, "from": entry.origin, "names": list(entry.facts.names), "architecture": entry.facts.architecture}
    return {**head, "link": entry.facts.link.kind, "model": None if entry.facts.model is None else str(entry.facts.model), "facts": facts}
