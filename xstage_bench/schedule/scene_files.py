"""Scene files: several schedules at the same time, of several sources and destinations, as JSON or CSV.

In JSON an end of a schedule may be a word, so that one file serves any node: source ``each`` or ``others``, destination ``others`` or
``next``. `expanded` makes the scene of a node. CSV has numbers only, and no company: the columns of a schedule file, ``scene`` and
``offset_ns``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.json_file import encode_json
from xstage_bench.schedule.burst_csv import labelled_schedules
from xstage_bench.schedule.burst_files import BurstEntry
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule
from xstage_bench.schedule.device import Node
from xstage_bench.schedule.scenes import Companion, CompanyKind, GapWork, Scene
from xstage_bench.schedule.texts import entries_of, is_json, read_either, read_text

SCHEMA_VERSION = 1
LABELS = {"scene": "", "offset_ns": "0"}
_FORM = '{"scenes": [{"name": "both", "schedules": [{"source": 0, "destination": 1, "bursts": [{"bytes": 65536}]}]}]}'
_HINT = f"JSON such as {_FORM}, or CSV with at least the columns scene,producers,bytes"
_FIELDS = (
    "a scene has name, schedules, company, gap_work, company_ns; a schedule bursts, source, destination, producers, warps, start, "
    "offset_ns; a companion kind, gpu, other, smids, warps, footprint_bytes"
)


class FlowEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One schedule of a scene file. `offset_ns` is when it begins, after the common start; `start` follows from the number of bursts."""

    bursts: list[BurstEntry]
    source: int | Literal["each", "others"] = 0
    destination: int | Literal["others", "next"] = 1
    producers: int | list[int] | Literal["all"] = "all"
    warps: int = 4
    start: StartRule | None = None
    offset_ns: int = 0


class CompanionEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One companion of a scene file; as `Companion`. `smids` may be a number of SMs: the first ones."""

    kind: CompanyKind
    gpu: int
    other: int
    smids: int | list[int]
    warps: int = 4
    footprint_bytes: int = 256 << 20


class SceneEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One scene of a scene file; as `Scene`. ``{source}``, ``{destination}`` and ``{gpus}`` in its name are filled in."""

    schedules: list[FlowEntry] = []
    name: str = ""
    company: list[CompanionEntry] = []
    gap_work: GapWork = "idle"
    company_ns: int = 500_000


class SceneFile(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON scene file."""

    schema_version: int
    scenes: list[SceneEntry]


def is_scene_file(path: Path) -> bool:
    """Whether a schedule file holds scenes, by its keys or columns; errors as of `texts.read_text`."""
    text = read_text(path)
    if not is_json(text):
        return "scene" in [cell.strip().strip('"') for cell in text.lstrip().splitlines()[0].split(",")]
    try:
        head = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(head, dict) and "scenes" in head


def load_scenes(path: Path) -> list[SceneEntry]:
    """Read a scene file; `expanded` makes a node's scenes of it.

    Raises
    ------
    UsageError
        `path` does not exist or is a folder.
    DataError
        The content describes no scenes; the message names the file, the line or entry, and the value.
    """
    return read_either(path, _from_json, _from_csv, "scene", _HINT)


def known(name: str) -> SceneEntry:
    """Return a scene that ships with the product, by its name."""
    data = (files("xstage_bench.schedule") / "known_scenes" / f"{name}.json").read_bytes()
    return msgspec.json.decode(data, type=SceneFile).scenes[0]


def save_scenes(path: Path, scenes: Sequence[Scene]) -> None:
    """Write scenes as JSON that `load_scenes` and `expanded` read back equal."""
    entries = [
        SceneEntry(
            [
                FlowEntry(
                    [BurstEntry(b.bytes, b.gap_cycles, b.start_ns) for b in s.bursts],
                    s.source, s.destination, s.producers if isinstance(s.producers, int) else list(s.producers), s.warps, s.start,
                )
                for s in scene.schedules
            ],
            scene.name,
            [CompanionEntry(c.kind, c.gpu, c.other, list(c.smids), c.warps, c.footprint_bytes) for c in scene.company],
            scene.gap_work,
            scene.company_ns,
        )
        for scene in scenes
    ]  # fmt: skip
    write_bytes(path, encode_json(SceneFile(SCHEMA_VERSION, entries)))


def expanded(entry: SceneEntry, node: Node) -> Scene:
    """Return the scene of an entry on a node.

    Raises
    ------
    UsageError
        The node lacks a GPU or an SM, or a schedule cannot be.
    """
    count = len(node.gpus)
    called = entry.name.replace("{gpus}", str(count)).replace("{source}", "A").replace("{destination}", "B")
    schedules: list[Schedule] = []
    for i, flow in enumerate(entry.schedules):
        try:
            schedules += _flows(flow, node)
        except XStageError as error:
            raise UsageError(f"scene '{called}': schedules[{i}]: {error.message}", error.hint) from error
    company = []
    for c in entry.company:
        own = node.gpus[_within(c.gpu, count)].smids
        if isinstance(c.smids, int) and c.smids > len(own):
            raise UsageError(
                f"scene '{called}': company '{c.kind}' on {c.smids} SMs, but GPU {c.gpu} has {len(own)}", f"use at most {len(own)}"
            )
        smids = own[: c.smids] if isinstance(c.smids, int) else tuple(c.smids)
        company.append(Companion(c.kind, c.gpu, _within(c.other, count), smids, c.warps, c.footprint_bytes))
    name = entry.name
    first = schedules[0] if schedules else None
    for word, value in (("source", first and first.source), ("destination", first and first.destination), ("gpus", count)):
        name = name.replace(f"{{{word}}}", str(value))
    return Scene(tuple(schedules), tuple(company), entry.gap_work, entry.company_ns, name)


def renumbered(entry: SceneEntry, source: int | None, destination: int | None, bursts: Sequence[Burst], warps: int) -> SceneEntry:
    """Return a scene with other ends in the place of its first schedule's, and with these bursts and warps."""
    first = entry.schedules[0]
    to: dict[Any, Any] = {}
    for was, now in ((first.source, source), (first.destination, destination)):
        if isinstance(was, int) and now is not None:
            to[was] = now
    course = [BurstEntry(b.bytes, b.gap_cycles, b.start_ns) for b in bursts]
    flows = [
        msgspec.structs.replace(
            f, source=to.get(f.source, f.source), destination=to.get(f.destination, f.destination), bursts=course, warps=warps
        )
        for f in entry.schedules
    ]
    return msgspec.structs.replace(entry, schedules=flows)


def dealt(smids: tuple[int, ...], ways: int) -> list[tuple[int, ...]]:
    """Deal SMs out: neighbouring smids share part of their path, so pairs of them are dealt, not single SMs."""
    return [tuple(m for i, m in enumerate(smids) if i // 2 % ways == j) for j in range(ways)]


def _flows(flow: FlowEntry, node: Node) -> list[Schedule]:
    count = len(node.gpus)
    if isinstance(flow.source, int):
        sources = [_within(flow.source, count)]
    elif flow.source == "each":
        sources = list(range(count))
    elif isinstance(flow.destination, int):
        sources = _others(count, flow.destination)
    else:
        raise UsageError("source 'others' needs a destination with a number", "say who is stored to")
    bursts = tuple(Burst(b.bytes, b.gap_cycles, b.start_ns) for b in flow.bursts)
    start: StartRule = flow.start or ("free" if len(bursts) > 1 else "isolated")
    out = []
    for source in sources:
        smids = node.gpus[source].smids
        if flow.destination == "others":
            ends = _others(count, source)
            if flow.producers != "all":
                raise UsageError("destination 'others' deals all SMs out", "leave out 'producers', or name the destinations")
            ways = list(zip(ends, dealt(smids, len(ends)), strict=True))
        else:
            end = (source + 1) % count if flow.destination == "next" else flow.destination
            chosen = (
                tuple(flow.producers) if isinstance(flow.producers, list) else len(smids) if flow.producers == "all" else flow.producers
            )
            ways = [(end if end < 0 else _within(end, count), chosen)]  # type: ignore[list-item]
        for end, producers in ways:
            out.append(_offset(Schedule(bursts, producers, flow.warps, source, end, start), flow.offset_ns))
    return out


def _offset(schedule: Schedule, offset_ns: int) -> Schedule:
    """Begin later: what is timed already as much later, and one burst at that time."""
    if not offset_ns:
        return schedule
    if schedule.start != "timed" and len(schedule.bursts) > 1:
        raise UsageError("offset_ns with several bursts that are not timed", "use start 'timed', with a start_ns for each burst")
    return replace(schedule, start="timed", bursts=tuple(replace(b, start_ns=b.start_ns + offset_ns) for b in schedule.bursts))


def _within(gpu: int, count: int) -> int:
    if not 0 <= gpu < count:
        raise UsageError(f"GPU {gpu} asked for, but there are {count}", "GPU indices start at 0")
    return gpu


def _others(count: int, gpu: int) -> list[int]:
    if count < 2:
        raise UsageError("this pattern needs two GPUs and the node has one", "use the pair pattern with the host destination")
    return [g for g in range(count) if g != _within(gpu, count)]


def _from_json(path: Path, text: str) -> list[SceneEntry]:
    entries = entries_of(path, text, "scenes", SceneFile, SceneEntry, SCHEMA_VERSION, _FIELDS, _FORM)
    for where, entry in entries:
        for i, flow in enumerate(entry.schedules):
            if not flow.bursts:
                raise DataError(f"{where}: schedules[{i}] has no bursts", 'for example "bursts": [{"bytes": 65536}]')
            if flow.offset_ns < 0:
                raise DataError(f"{where}: schedules[{i}]: offset_ns is {flow.offset_ns}, must not be negative", "change 'offset_ns'")
    return [entry for _, entry in entries]


def _from_csv(text: str) -> list[SceneEntry]:
    scenes: dict[str, list[FlowEntry]] = {}
    for line, label, s in labelled_schedules(text, LABELS):
        if not label["offset_ns"].strip().isdecimal():
            raise DataError(
                f"line {line}: column 'offset_ns' is '{label['offset_ns']}', not a whole number", "write it in digits, for example 2000"
            )
        if (s.flavour, s.layout) != ("st.v4", "contiguous"):
            raise DataError(f"line {line}: flavour '{s.flavour}', layout '{s.layout}' in a scene", "scenes store st.v4, contiguous")
        producers: Any = s.producers if isinstance(s.producers, int) else list(s.producers)
        bursts = [BurstEntry(b.bytes, b.gap_cycles, b.start_ns) for b in s.bursts]
        flow = FlowEntry(bursts, s.source, s.destination, producers, s.warps, s.start, int(label["offset_ns"]))
        scenes.setdefault(label["scene"], []).append(flow)
    return [SceneEntry(flows, name) for name, flows in scenes.items()]
