"""Schedules of bursts as JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import msgspec

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.csv_rows import truth_text, written_producers
from xstage_bench.io.json_file import encode_json
from xstage_bench.io.no_collection import no_collection
from xstage_bench.schedule.burst_csv import COLUMNS, schedules_from_csv
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule
from xstage_bench.schedule.completion import DEFAULT as DEFAULT_COMPLETION
from xstage_bench.schedule.texts import entries_of, read_either

SCHEMA_VERSION = 1

_JSON_FORM = '{"producers": 132, "warps": 4, "bursts": [{"bytes": 65536}]}'
_HINT = f"JSON such as {_JSON_FORM}, or CSV with at least the columns producers,bytes"


class BurstEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One burst in a schedule file; as `Burst`."""

    bytes: int
    gap_cycles: int = 0
    start_ns: int = 0


class ScheduleEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One schedule in a schedule file; as `Schedule`. `id` is the user's own name for it."""

    bursts: list[BurstEntry]
    producers: int | list[int]
    warps: int = 1
    source: int = 0
    destination: int = 1
    start: StartRule = "isolated"
    flavour: str = "st.v4"
    layout: str = "contiguous"
    completion: str = DEFAULT_COMPLETION
    warps_meet: bool = True
    id: str | None = None


class ScheduleFile(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON schedule file with several schedules."""

    schema_version: int
    schedules: list[ScheduleEntry]


def load_bursts(path: Path | str) -> list[Schedule]:
    """Read a schedule file.

    Parameters
    ----------
    path : Path or str
        JSON when its content begins with a brace or a bracket, else CSV. A byte-order mark and any line ends are accepted.

    Returns
    -------
    list of Schedule, at least one, in the order of the file

    Raises
    ------
    UsageError
        `path` does not exist or is a folder.
    DataError
        The content describes no schedules; the message names the file, the line or entry, the column and the value.
    """
    with no_collection():
        return read_either(Path(path), _from_json, schedules_from_csv, "schedule", _HINT)


def save_bursts(path: Path | str, schedules: Sequence[Schedule]) -> None:
    """Write a schedule file that `load_bursts` reads back equal: CSV when `path` ends in ``.csv``, else JSON.

    Raises
    ------
    UsageError
        No schedule is given, or the folder of `path` does not exist.
    XStageError
        The system refuses to write there.
    """
    path = Path(path)
    if not schedules:
        raise UsageError("there is no schedule to write", "give at least one")
    write_bytes(path, _to_csv(schedules) if path.suffix.lower() == ".csv" else _to_json(schedules))


def _from_json(path: Path, text: str) -> list[Schedule]:
    hint = f"a schedule has the fields {', '.join(ScheduleEntry.__struct_fields__)}; a burst has bytes, gap_cycles, start_ns"
    entries = entries_of(path, text, "schedules", ScheduleFile, ScheduleEntry, SCHEMA_VERSION, hint, _JSON_FORM)
    return [_schedule(entry, where) for where, entry in entries]


def _schedule(entry: ScheduleEntry, where: str) -> Schedule:
    producers = tuple(entry.producers) if isinstance(entry.producers, list) else entry.producers
    bursts = tuple(Burst(b.bytes, b.gap_cycles, b.start_ns) for b in entry.bursts)
    try:
        where_to = (entry.source, entry.destination)
        how = (entry.flavour, entry.layout, entry.completion)
        return Schedule(bursts, producers, entry.warps, *where_to, entry.start, *how, warps_meet=entry.warps_meet)
    except XStageError as error:
        name = f" ('{entry.id}')" if entry.id else ""
        raise DataError(f"{where}{name}: {error.message}".removeprefix(": "), error.hint) from error


def _to_json(schedules: Sequence[Schedule]) -> bytes:
    entries = [
        ScheduleEntry(
            bursts=[BurstEntry(b.bytes, b.gap_cycles, b.start_ns) for b in s.bursts],
            producers=s.producers if isinstance(s.producers, int) else list(s.producers),
            warps=s.warps,
            source=s.source,
            destination=s.destination,
            start=s.start,
            flavour=s.flavour,
            layout=s.layout,
            completion=s.completion,
            warps_meet=s.warps_meet,
            id=s.key(),
        )
        for s in schedules
    ]
    return encode_json(ScheduleFile(SCHEMA_VERSION, entries))


def _to_csv(schedules: Sequence[Schedule]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, s in enumerate(schedules):
        producers = written_producers(s.producers)
        # The number keeps two schedules apart that do the same and so have one key.
        how = (s.flavour, s.layout, s.start, s.completion, truth_text(s.warps_meet))
        head = (f"{number}-{s.key()}", s.source, s.destination, producers, s.warps, *how)
        writer.writerows((*head, b.bytes, b.gap_cycles, b.start_ns) for b in s.bursts)
    return text.getvalue().encode()
