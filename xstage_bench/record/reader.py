"""Reads run folders, complete or interrupted, and rebuilds schedules from their rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.record.columns import MEASURED, arrow_schema
from xstage_bench.record.manifest import MANIFEST_NAME, Manifest, load_manifest
from xstage_bench.record.parts import (
    COLUMNS,
    PRODUCERS_FOLDER,
    SAMPLES_FOLDER,
    TRACES_NAME,
    file_digest,
    part_name,
    part_numbers,
    read_table,
)
from xstage_bench.record.sound import IMPOSSIBLE, impossible_producers, impossible_samples, impossible_stores
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule
from xstage_bench.schedule.completion import DEFAULT
from xstage_bench.schedule.flavour import recorded_flavour, register
from xstage_bench.schedule.layouts import recorded_layout, register_layout

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder that exists and whose manifest is sound. Tables are read, and checked, when asked for."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    def samples(self) -> pd.DataFrame:
        """Return one row per schedule, repetition and burst, in the order written (docs/files.md).

        Null numbers are NaN, null strings are missing; ``gap_cycles`` and ``start_ns`` are float64 for that reason. A row of status
        ``ok`` that cannot be (`xstage_bench.record.sound`) has the status ``impossible`` instead, and its detail says why.

        Raises
        ------
        DataError
            A part is not Parquet, cut short, or of another schema; the message names the file.
        """
        return self._frame("samples")

    def producers(self) -> pd.DataFrame:
        """Return one row per producer and burst of those executions that kept them; errors as `samples`.

        Executions with a row that cannot be are left out whole.
        """
        return self._frame("producers")

    def traces(self) -> pd.DataFrame:
        """Return one row per store of the exemplars; empty when the run recorded none; errors as `samples`.

        Exemplars with a row that cannot be are left out whole.
        """
        return self._frame("traces")

    def arrow_parts(self, table: str) -> Iterator[Any]:
        """Yield the pyarrow Tables of ``"samples"``, ``"producers"`` or ``"traces"`` one after the other; errors as `samples`."""
        for path in self._paths(table):
            yield _judged(table, read_table(path, COLUMNS[table]), self.manifest)

    def changed(self, tables: Sequence[str] = tuple(COLUMNS)) -> list[str]:
        """Return the names of files of `tables` that were changed, lost or added since they were written; none without digests."""
        written = {n: digest for n, digest in self.manifest.parts.items() if n.partition("/")[0].removesuffix(".parquet") in tables}
        if not written:
            return []
        found = {str(p.relative_to(self.folder)): p for table in tables for p in self._paths(table)}
        if TRACES_NAME not in written:  # a run from before its digest
            found.pop(TRACES_NAME, None)
        return [n for n in sorted({*found, *written}) if n not in found or written.get(n) != file_digest(found[n])]

    def _paths(self, table: str) -> list[Path]:
        if table == "traces":
            path = self.folder / TRACES_NAME
            return [path] if path.exists() else []
        # A samples part commits the producers part of its number: one without the other is what a kill left.
        committed = part_numbers(self.folder / SAMPLES_FOLDER)
        if table == "samples":
            return [self.folder / SAMPLES_FOLDER / part_name(n) for n in committed]
        kept = set(part_numbers(self.folder / PRODUCERS_FOLDER))
        return [self.folder / PRODUCERS_FOLDER / part_name(n) for n in committed if n in kept]

    def _frame(self, table: str) -> pd.DataFrame:
        import pyarrow as pa

        empty = arrow_schema(COLUMNS[table], dictionary=False).empty_table()
        return cast("pd.DataFrame", pa.concat_tables([empty, *self.arrow_parts(table)]).to_pandas())


def _judged(name: str, table: Any, manifest: Manifest) -> Any:
    """Mark the samples that cannot be; leave out the executions whose producers or stores cannot be."""
    import pyarrow as pa

    if not table.num_rows:
        return table
    if name != "samples":
        columns = {n: table.column(n).to_numpy(zero_copy_only=False) for n in _OF[name]}
        if not (bad := (impossible_producers if name == "producers" else impossible_stores)(columns)).any():
            return table
        keys = list(zip(*(table.column(n).to_pylist() for n in _EXECUTION if n in table.column_names), strict=True))
        gone = {keys[i] for i in bad.nonzero()[0]}
        return table.filter(pa.array([key not in gone for key in keys]))
    columns = {n: table.column(n).to_numpy(zero_copy_only=False) for n in _OF_SAMPLES}
    reasons = impossible_samples(columns, manifest.node)
    status = table.column("status").to_numpy(zero_copy_only=False)
    bad = (status == "ok") & (reasons != "")
    if not bad.any():
        return table
    status[bad] = IMPOSSIBLE
    detail = table.column("detail").to_numpy(zero_copy_only=False)
    detail[bad] = reasons[bad]
    for column, values in (("status", status), ("detail", detail)):
        at = table.column_names.index(column)
        table = table.set_column(at, table.schema.field(at), pa.array(values, pa.string()))
    return table


_EXECUTION = ("schedule", "source", "destination", "process", "repetition", "order")
_OF = {"producers": ("issue_cycles", "start_ns", "end_ns", "drain_cycles"), "traces": ("cycles", "store", "warp", "smid")}
_OF_SAMPLES = (
    *("source", "destination", "producers", "warps", "burst", "bursts", "bytes", "gap_cycles", "start_ns"),
    *MEASURED,
    "sm_clock_mhz",
)


def load_run(path: Path | str) -> Run:
    """Open a run folder.

    Raises
    ------
    UsageError
        `path` does not exist.
    DataError
        It is no run folder, or its manifest is damaged or newer than this program.
    """
    folder = Path(path)
    if not folder.exists():
        raise UsageError(f"{folder}: no such run folder", "xstage run --out DIR makes one")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file, not a run folder", "name the folder that holds manifest.json")
    if not (folder / MANIFEST_NAME).is_file():
        raise DataError(f"{folder} is not a run folder: it has no {MANIFEST_NAME}", "name the folder that holds manifest.json")
    manifest = load_manifest(folder)
    for own in manifest.options.get("own_flavours", []):  # schedules name them
        register(recorded_flavour(own))
    for own in manifest.options.get("own_layouts", []):
        register_layout(recorded_layout(own))
    return Run(folder, manifest)


def schedules_of(samples: pd.DataFrame) -> dict[str, Schedule]:
    """Rebuild the schedules from their rows.

    Parameters
    ----------
    samples : DataFrame
        Rows of `Run.samples`, or any part of them that has whole executions.

    Returns
    -------
    dict of str to Schedule
        By key, in order of first appearance.

    Raises
    ------
    DataError
        The rows of a schedule describe none, or one with another key.
    """
    if "completion" not in samples:  # a table of before there were others
        samples = samples.assign(completion=DEFAULT)
    rows = samples.drop_duplicates(["schedule", "burst"]).sort_values(["schedule", "burst"], kind="stable")
    # Plain lists: a DataFrame per schedule would take seconds for a full profile.
    values = {name: rows[name].fillna(0).tolist() if name in ("gap_cycles", "start_ns") else rows[name].tolist() for name in _DESCRIBE}
    keys = values["schedule"]
    edges = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)] if keys else [0]
    found = {keys[a]: _schedule({name: column[a:b] for name, column in values.items()}) for a, b in itertools.pairwise(edges)}
    return {key: found[key] for key in map(str, samples["schedule"].drop_duplicates())}


_DESCRIBE = (
    *("schedule", "source", "destination", "flavour", "layout", "completion", "start", "producers", "producer_set", "warps"),
    *("burst", "bursts", "bytes", "gap_cycles", "start_ns"),
)


def _schedule(rows: dict[str, list[Any]]) -> Schedule:
    head = {name: values[0] for name, values in rows.items()}
    key = head["schedule"]
    if rows["burst"] != list(range(head["bursts"])):
        raise DataError(f"schedule {key}: rows of its {head['bursts']} bursts are missing", "use whole executions of an undamaged run")
    try:
        schedule = Schedule(
            bursts=tuple(
                Burst(int(b), int(g), int(s)) for b, g, s in zip(rows["bytes"], rows["gap_cycles"], rows["start_ns"], strict=True)
            ),
            producers=_producers(head["producer_set"], head["producers"]),
            warps=head["warps"],
            source=head["source"],
            destination=head["destination"],
            start=cast("StartRule", head["start"]),
            flavour=head["flavour"],
            layout=head["layout"],
            completion=head["completion"],
        )
    except (XStageError, ValueError) as error:
        raise DataError(
            f"schedule {key}: its rows describe no schedule ({getattr(error, 'message', error)})", "take the run from a copy"
        ) from error
    if schedule.key() != key and schedule.start != "isolated" and (apart := replace(schedule, warps_meet=False)).key() == key:
        return apart  # no column says it: the key does
    if schedule.key() != key:
        raise DataError(
            f"schedule {key}: its rows describe another one ({schedule.key()})", "the run is damaged, or newer than this xstage-bench"
        )
    return schedule


def _producers(producer_set: str, count: int) -> int | tuple[int, ...]:
    return count if producer_set == "even" else tuple(int(p) for p in producer_set.removeprefix("smid:").split(","))


def check_tables(run: Run) -> None:
    """Read every table of a run once, part by part.

    What draws or exports a run begins after this, so that a damaged part is refused before anything of the result is written.

    Raises
    ------
    DataError
        A part is not Parquet, cut short, or of another schema.
    """
    for table in ("samples", "producers", "traces"):
        for _ in run.arrow_parts(table):
            pass
