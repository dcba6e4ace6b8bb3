"""The pages that are made from the code: docs/cli.md, docs/files.md and docs/api.md. Run by ``make reference``.

They say what the code says: commands and options from click, documents from their types, columns from the record, functions from their
docstrings, and the meaning of a column from the glossary of ``xstage explain``. A test fails when a page is not what this script makes.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import xstage_bench
from xstage_bench import errors
from xstage_bench.cli import xstage
from xstage_bench.record import columns
from xstage_bench.show.explain import explain
from xstage_bench.show.schemas import schemas

DOCS = Path(__file__).parent.parent / "docs"
MADE = "<!-- Made by scripts/reference_pages.py (make reference): change the code, not this page. -->\n"
#: An option that so many commands have in the same words is explained once.
SHARED = 3
#: Documents that a user writes: each of their keys is explained here, those of the others by ``xstage explain``.
WRITTEN_BY_HAND = ("schedules", "task_schedules")
ONLY_SCHEMA = ("node", "scenes")  # `xstage nodes show` and the example say what their keys are
#: What a model keeps for its own predictions: it is no use to other programs.
INNER = ("NodeBasis",)

CLI = """# The command line

`xstage VERB [OPTIONS]`, or `python -m xstage_bench VERB [OPTIONS]`. A verb does one step; `profile` does them all. Numbers, tables and
documents go to stdout. Prose, warnings and progress go to stderr. With `--json` stdout holds one JSON object and nothing else; when a verb
fails it is `{"error", "hint", "exit_code"}`. Every error says what is wrong, where, and what to type next.

Ctrl-C and SIGTERM keep what was measured; the same command with `--resume --out DIR` finishes it. A reader of stdout that goes away
(`xstage export RUN | head`) is no error. Shell completion: `eval "$(_XSTAGE_COMPLETE=bash_source xstage)"`.
"""

FILES = """# Files

All JSON is strict: no NaN, no Infinity, no number inside a string. A missing value is `null`, with a status or a reason beside it. Sizes
are bytes, rates are 10^9 bytes per second, and times carry their unit in their name. Keys and columns are added, never renamed. `xstage
explain WORD` says what any key or column means.

## A run folder

```
manifest.json                what was run, on which GPUs and links, in which state
samples/part-NNNN.parquet    one row per schedule, repetition and burst
producers/part-NNNN.parquet  start and end of each producer, for isolated and hold-out schedules
traces.parquet               the time of every store of a few exemplars
model.json validation.json figures/ report.html    derived: they can be made again
```

The first four are the record. Nothing changes them once the run is complete, and no run writes into a folder that holds anything.
A `?` behind a type means that null may stand there.

- Every file is written under a temporary name, flushed and renamed: it is whole or absent.
- A part takes seconds and never splits an execution: a kill loses seconds.
- The samples part commits the producers part of the same number; one without the other does not count.
- `--resume` keeps what counts and measures the rest.
"""

SCHEDULES = """## What a user writes

A schedule file is JSON when it begins with `{`, else CSV; UTF-8, at most 512 MiB. Bytes are **per producer**, a multiple of `warps` x 512
for `st.v4`. An unknown key is refused.

```json
{"producers": 132, "warps": 4, "start": "free", "bursts": [{"bytes": 65536}, {"bytes": 65536, "gap_cycles": 2000}]}
```

```json
{"producers": 2, "phases": ["linear 1", "linear 2"], "tasks": {
  "producer": [0, 0, 1, 1], "compute_cycles": [9000, 4000, 9000, 4000], "bytes": [0, 32768, 0, 32768],
  "waits_for": [-1, 0, -1, 0], "signals": [0, -1, 0, -1], "phase": [0, 1, 0, 1]}}
```

Several are `{"schema_version": 1, "schedules": [...]}`, or `"task_schedules"`. In CSV a row is a burst or
a task, `schedule` says which rows belong together, an empty cell is the default, and a list of SMs is written `smid:0 2 4`.

```
schedule,producers,warps,start,bytes,gap_cycles
a,132,4,free,65536,0
a,132,4,free,65536,2000
```

A *scene file* holds several schedules at once. `source` may be `each` or `others`, `destination` `others` or `next`, so that it fits any
node; `offset_ns` is when a schedule begins. In CSV there are numbers only, and the columns `scene` and `offset_ns` more.

```json
{"schema_version": 1, "scenes": [{"name": "ring", "schedules": [
  {"source": "each", "destination": "next", "bursts": [{"bytes": 1048576}]}],
  "company": [{"kind": "pull", "gpu": 0, "other": 1, "smids": [0, 2], "warps": 8}]}]}
```
"""

DOCUMENTS = """
## Documents

The JSON Schemas are in `results/schemas/`. A key without a type holds a string or a number; `X[]` is a list of X,
and `map(X)` an object whose values are X.
"""

API = """# The Python API

`import xstage_bench` loads nothing but itself; a name is imported when it is first used. The names below are public. Within a major version
they are only added to; before 1.0 a minor version may break them, and the changelog says so. Everything else in the package is private.
Sizes are bytes per producer, times are SM cycles, unless a name says otherwise. Every error that a caller can cause is an `XStageError`,
with `message` (what is wrong and where) and `hint` (what to do).
"""


def main() -> None:
    """Write the three pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}: {len(text.split())} words")


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    return {"cli.md": cli_page(), "files.md": files_page(), "api.md": api_page()}


def cli_page() -> str:
    """Return every command with its options, those that many commands share once at the top."""
    commands = [(path, command, _options(path, command)) for path, command in _commands(xstage, "xstage")]
    leaves = [(command, options) for _, command, options in commands if not isinstance(command, click.Group)]
    counts = Counter(option for _, options in leaves for option in options)
    shared = [option for option, count in counts.items() if count >= SHARED]
    names = Counter(_name(option) for option in shared)

    def told_apart(option: tuple[str, str]) -> tuple[str, str]:
        """Say whose option it is where another one of that name is shared too."""
        users = [path.removeprefix("xstage ") for path, _, options in commands if option in options]
        whose = "measure" if all(user.startswith("measure ") for user in users) else ", ".join(users)
        return (option[0], f"{option[1]} (Of {whose}.)") if names[_name(option)] > 1 else option

    everywhere = {option for option in shared if counts[option] == len(leaves)}
    links = [f"[{path.removeprefix('xstage ')}](#{path.replace(' ', '-')})" for path, _, _ in commands]
    parts = [MADE, CLI, f"\nVerbs: {', '.join(links)}.\n\n{xstage.epilog} [Files](files.md#exit-codes) says more.\n"]
    parts.append("\n## Options that several verbs share\n\n")
    parts.append(_table(("option", "meaning"), [(f"`{_cell(name)}`", _cell(text)) for name, text in map(told_apart, shared)]))
    parts.append(f"\n{', '.join(_name(option) for option in shared if option in everywhere)}: on every verb.\n")
    for path, command, options in commands:
        usage = _usage(path, command)
        plain = isinstance(command, click.Group) or usage == f"{path} [OPTIONS]"
        parts.append(f"\n## {path}\n" + ("" if plain else f"\n`{usage}`\n") + f"\n{_prose(command.help or '')}\n")
        named = [_name(option) for option in options if option in shared and option not in everywhere]
        if isinstance(command, click.Group) and path == "xstage":
            parts.append(f"\n```text\n{_listed(path, command)}```\n")
        own = [(f"`{_cell(name)}`", _cell(text)) for name, text in options if (name, text) not in shared]
        if own:
            parts.append("\n" + _table(("option", "meaning"), own))
        if named:
            parts.append(f"\nAlso: {', '.join(named)}.\n")
    return "".join(parts)


def files_page() -> str:
    """Return the record's columns, the schedule files and the keys of every document."""
    parts = [MADE, FILES]
    tables = {"samples": columns.SAMPLES, "producers": columns.PRODUCERS, "traces": columns.TRACES}
    said: set[str] = set()
    for name, wanted in tables.items():
        known = [f"`{c.name}`" for c in wanted if c.name in said]
        parts.append(f"\n### {name}\n\n" + (f"As above: {', '.join(known)}; and\n\n" if known else ""))
        parts += [f"- `{c.name}` {c.type}{'?' * c.null}: {_meaning(c.name)}\n" for c in wanted if c.name not in said]
        said |= {c.name for c in wanted}
    parts.append(f"\n{SCHEDULES}")
    documents = schemas()
    said = set()
    for name in WRITTEN_BY_HAND:
        parts.append(f"\n### {name}\n")
        for title, definition in _objects(documents[name])[1:]:
            needed = set(definition.get("required", ()))
            keys = {key: f"{_type(value)}{_default(key, value, needed)}" for key, value in definition["properties"].items()}
            known = [f"`{key}` {words}" for key, words in keys.items() if key in said]
            parts.append(f"\n**{title}**: {_said(definition)}\n\n")
            parts += [f"- `{key}` {words}: {_meaning(key)}\n" for key, words in keys.items() if key not in said]
            parts.append(f"- as above: {'; '.join(known)}\n" if known else "")
            said |= set(keys) - {"bytes"}
    parts.append(DOCUMENTS)
    shown: list[tuple[str, dict[str, Any]]] = []
    for name in (n for n in documents if n not in (*WRITTEN_BY_HAND, *ONLY_SCHEMA)):
        parts.append(f"\n### {name}.json\n\n")
        objects = [item for item in _objects(documents[name])[: None if name == "model" else 1] if item not in shown]
        shown += objects
        parts += [f"- **{title}**: {_said(d)} {_keys(d)}.\n" for title, d in objects]
    parts.append(f"\n## Exit codes\n\n{_exit_codes()}")
    return "".join(parts)


def api_page() -> str:
    """Return the public names with their parameters, and the types that they take and give."""
    parts = [MADE, API, "\n", _example()]
    public = {name: getattr(xstage_bench, name) for name in xstage_bench.__all__}
    functions = {name: item for name, item in public.items() if inspect.isfunction(item)}
    types = {name: item for name, item in public.items() if inspect.isclass(item)}
    if find_spec("xstage_bench.types") is not None:
        module = import_module("xstage_bench.types")
        types |= {name: getattr(module, name) for name in module.__all__ if inspect.isclass(getattr(module, name))}
    parts.append("\n## Functions\n")
    parts += [_function(name, item) for name, item in functions.items()]
    parts.append("\n## Types\n\n")
    rows = [(f"`{name}`", _cell(_line(inspect.getdoc(item) or "")), _cell(_attributes(item))) for name, item in types.items()]
    parts.append(_table(("type", "what it is", "fields and methods"), rows))
    return "".join(parts)


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    with click.Context(group, info_name=path) as ctx:
        for name in group.list_commands(ctx):
            command = group.get_command(ctx, name)
            if command is None or command.hidden or command.deprecated:
                continue
            yield f"{path} {name}", command
            if isinstance(command, click.Group):
                yield from _commands(command, f"{path} {name}")


def _listed(path: str, group: click.Group) -> str:
    """Return what a group's own help says of its commands: it may know more of them than it lists."""
    ctx = click.Context(group, info_name=path)
    formatter = click.HelpFormatter(width=120)
    group.format_commands(ctx, formatter)
    return formatter.getvalue().lstrip()


def _options(path: str, command: click.Command) -> list[tuple[str, str]]:
    ctx = click.Context(command, info_name=path)
    records = [p.get_help_record(ctx) for p in command.params if isinstance(p, click.Option) and not p.hidden]
    # click shows the whole range of a seed; what bounds a number of 32 bits is no help.
    return [(r[0].replace("INTEGER RANGE", "N"), re.sub(r"(; )?0<=x<=\d{10}", "", r[1])) for r in records if r is not None]


def _usage(path: str, command: click.Command) -> str:
    return " ".join([path, *command.collect_usage_pieces(click.Context(command, info_name=path))])


def _prose(text: str) -> str:
    paragraphs = inspect.cleandoc(text).replace("\b", "").split("\n\n")
    return _linked(_escape("\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)))


def _name(option: tuple[str, str]) -> str:
    return f"`{option[0].split()[0].rstrip(',')}`"


def _objects(schema: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of a schema, the document itself first, then in the order in which they are met."""
    definitions = schema["$defs"]
    found: dict[str, dict[str, Any]] = {}

    def visit(part: Any) -> None:
        if isinstance(part, Mapping):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in (*found, *INNER):
                found[name] = definitions[name]
                visit(definitions[name])
            for value in part.values():
                visit(value)
        elif isinstance(part, list):
            for value in part:
                visit(value)

    visit({key: value for key, value in schema.items() if key != "$defs"})
    return [(name, definition) for name, definition in found.items() if "properties" in definition]


def _keys(definition: Mapping[str, Any]) -> str:
    """Return the keys, those of one type together; plain ones first and without their type."""
    groups: dict[str, list[str]] = {"": []}
    for key, value in definition["properties"].items():
        type_ = _type(value).removesuffix("?")
        groups.setdefault("" if type_ in ("string", "number", "integer") else type_, []).append(f"`{key}`")
    return "; ".join(f"{type_}: {', '.join(keys)}" if type_ else ", ".join(keys) for type_, keys in groups.items() if keys)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        words = dict.fromkeys(_type(part) for part in schema["anyOf"] if part.get("type") != "null")
        return " or ".join(words) + "?" * any(part.get("type") == "null" for part in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"{_type(schema['items'])}[]" if isinstance(schema.get("items"), Mapping) else "list"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"map({_type(inner)})" if isinstance(inner, Mapping) and inner else "object"
    return str(kind)


def _default(key: str, schema: Mapping[str, Any], needed: set[str]) -> str:
    if key in needed:
        return ", needed"
    value = schema.get("default")
    return "" if value in (None, "", [], {}) else f", `{str(value).lower() if isinstance(value, bool) else value}`"


def _said(definition: Mapping[str, Any]) -> str:
    return _linked(_escape(_line(definition.get("description", ""))))


def _meaning(word: str) -> str:
    entries = {entry.section: entry.meaning for entry in explain(word)}
    return _linked(entries.get("columns") or next(iter(entries.values())))


def _exit_codes() -> str:
    words = dict(re.findall(r"(\d+) ([^,.]+)", xstage.epilog or ""))
    kinds = [item for item in vars(errors).values() if inspect.isclass(item) and errors.XStageError in item.__bases__]
    lines = []
    for code, word in words.items():
        causes = [_prose(re.sub(r" \(exit .*?\)", "", _line(kind.__doc__ or ""))) for kind in kinds if str(kind.exit_code) == code]
        lines.append(f"- `{code}` {word}{'. ' if causes else ''}{' '.join(dict.fromkeys(causes))}\n")
    return "".join(lines)


def _function(name: str, item: Any) -> str:
    """Return one function: how it is called, then its docstring."""
    call = ", ".join(_parameters(inspect.signature(item).parameters.values()))
    sections = _sections(inspect.getdoc(item) or "")
    parts = [f"\n### {name}\n\n`{name}({call})`\n\n{_prose(sections.pop('', ''))}\n"]
    for title, text in sections.items():
        entries = _entries(text)
        if title == "Parameters":
            parts.append("\n" + "".join(f"- `{head.partition(' : ')[0]}`{_described(head, body)}\n" for head, body in entries))
        else:
            said = " ".join(f"`{head}`" + (f": {body}" if body else "") for head, body in entries)
            parts.append(f"\n{title}: {said}\n")
    return "".join(parts)


def _parameters(parameters: Sequence[inspect.Parameter] | Any) -> Iterator[str]:
    keyword_only = False
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        yield parameter.name + ("" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}")


def _described(head: str, body: str) -> str:
    kind = head.partition(" : ")[2]
    return (f" ({_escape(kind)})" if kind else "") + (f": {_linked(_escape(body))}" if body else "")


def _sections(text: str) -> dict[str, str]:
    """Split a numpydoc docstring into its sections; what stands before the first is ''."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", text, flags=re.MULTILINE)
    return {"": parts[0].strip(), **{title: body.strip("\n") for title, body in zip(parts[1::2], parts[2::2], strict=True)}}


def _entries(text: str) -> list[tuple[str, str]]:
    """Return the entries of a numpydoc section: the line at the margin, and what is indented below it in one line."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line and not line[0].isspace():
            found.append((line.strip(), []))
        elif found and line.strip():
            found[-1][1].append(line.strip())
    return [(head, " ".join(body)) for head, body in found]


MOST_FIELDS = 6  # of a type; its docstring has all


def _attributes(item: type) -> str:
    shown = [f.name for f in fields(item) if not f.name.startswith("_")] if is_dataclass(item) else []
    methods = [n for n, v in vars(item).items() if not n.startswith("_") and inspect.isfunction(v)]
    values = [n for n, v in vars(item).items() if not n.startswith("_") and isinstance(v, property)]
    known = shown + values
    more = [f"{len(known) - MOST_FIELDS} more"] if len(known) > MOST_FIELDS + 1 else []
    return ", ".join([*(f"`{name}`" for name in known[: None if not more else MOST_FIELDS]), *more, *(f"`{name}()`" for name in methods)])


EXAMPLE = """import xstage_bench as xs

model = xs.load_model("results/reference/h200-nv18")
schedule = xs.Schedule((xs.Burst(32768), xs.Burst(32768, gap_cycles=2000)), producers=132, warps=4, start="free")
xs.predict(model, schedule).regime
stage = xs.stage(model, producers=132, warps=4)
round(stage.drain_gb_per_s.value)
stage.largest_free_burst_bytes()
stage.would_stall(16384), stage.would_stall(16384, backlog_bytes=1e6)
round(stage.recovery_gap_cycles(32768))
stage.largest_steady_burst_bytes(gap_cycles=6000)
"""


def _example() -> str:
    """Run the example with the model that ships with the package, and show what each expression gives."""
    names: dict[str, Any] = {}
    shown = []
    for line in EXAMPLE.replace("results/reference", str(DOCS.parent / "results/reference")).splitlines():
        if re.match(r"import |\w+ = |$", line):
            exec(line, names)
            shown.append(line)
        else:
            shown.append(f"{line}  # -> {eval(line, names)}")
    text = "\n".join(shown).replace(str(DOCS.parent) + "/", "")
    return f"The values are those of the measured node that comes with the package, 2 x H200.\n\n```python\n{text}\n```\n"


def _line(text: str) -> str:
    """Return the first paragraph in one line."""
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


def _escape(text: str) -> str:
    return text.replace("``", "`")


def _linked(text: str) -> str:
    """Turn the name of a page or finding, as messages and docstrings have it, into a link."""
    text = re.sub(r"\bdocs/([\w-]+)\.md\b", r"[\1](\1.md)", text)
    return re.sub(r"\b(results/[\w-]+/([a-z]+))(?![\w/.-])", r"[\2](../\1/README.md)", text)


def _cell(text: str) -> str:
    return _linked(_escape(" ".join(text.split()))).replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([" | ".join(head), "|".join(["---"] * len(head)), *(" | ".join(row) for row in rows), ""])


if __name__ == "__main__":
    main()
