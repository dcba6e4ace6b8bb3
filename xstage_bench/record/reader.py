"""Reads run folders, complete or interrupted, and rebuilds schedules from their rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.record.columns import arrow_schema
from xstage_bench.record.manifest import MANIFEST_NAME, Manifest, load_manifest
from xstage_bench.record.parts import COLUMNS, PRODUCERS_FOLDER, SAMPLES_FOLDER, TRACES_NAME, part_name, part_numbers, read_table
from xstage_bench.schedule import Burst, Schedule, StartRule

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
        """Return one row per schedule, repetition and burst, in the order written (docs/file-format.md).

        Null numbers are NaN, null strings are missing; ``gap_cycles`` and ``start_ns`` are float64 for that reason.

        Raises
        ------
        DataError
            A part is not Parquet, cut short, or of another schema; the message names the file.
        """
        return self._frame("samples", [self.folder / SAMPLES_FOLDER / part_name(n) for n in self._committed()])

    def producers(self) -> pd.DataFrame:
        """Return one row per producer and burst of those executions that kept them; errors as `samples`."""
        kept = set(part_numbers(self.folder / PRODUCERS_FOLDER))
        return self._frame("producers", [self.folder / PRODUCERS_FOLDER / part_name(n) for n in self._committed() if n in kept])

    def traces(self) -> pd.DataFrame:
        """Return one row per store of the exemplars; empty when the run recorded none; errors as `samples`."""
        path = self.folder / TRACES_NAME
        return self._frame("traces", [path] if path.exists() else [])

    def _committed(self) -> list[int]:
        return part_numbers(self.folder / SAMPLES_FOLDER)

    def _frame(self, table: str, paths: list[Path]) -> pd.DataFrame:
        import pyarrow as pa

        columns = COLUMNS[table]
        pieces = [read_table(path, columns) for path in paths]
        joined = pa.concat_tables(pieces) if pieces else arrow_schema(columns, dictionary=False).empty_table()
        return cast("pd.DataFrame", joined.to_pandas())


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
    return Run(folder, load_manifest(folder))


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
    rows = samples.drop_duplicates(["schedule", "burst"]).sort_values(["schedule", "burst"], kind="stable")
    found = {str(key): _schedule(str(key), group) for key, group in rows.groupby("schedule", sort=False)}
    return {key: found[key] for key in map(str, samples["schedule"].drop_duplicates())}


def _schedule(key: str, rows: pd.DataFrame) -> Schedule:
    head: dict[Any, Any] = rows.iloc[0].to_dict()
    if rows["burst"].tolist() != list(range(int(head["bursts"]))):
        raise DataError(f"schedule {key}: rows of its {head['bursts']} bursts are missing", "use whole executions of an undamaged run")
    gaps, starts = rows["gap_cycles"].fillna(0), rows["start_ns"].fillna(0)
    try:
        schedule = Schedule(
            bursts=tuple(Burst(int(b), int(g), int(s)) for b, g, s in zip(rows["bytes"], gaps, starts, strict=True)),
            producers=_producers(str(head["producer_set"]), int(head["producers"])),
            warps=int(head["warps"]),
            source=int(head["source"]),
            destination=int(head["destination"]),
            start=cast("StartRule", str(head["start"])),
            flavour=str(head["flavour"]),
            layout=str(head["layout"]),
        )
    except (XStageError, ValueError) as error:
        raise DataError(
            f"schedule {key}: its rows describe no schedule ({getattr(error, 'message', error)})", "take the run from a copy"
        ) from error
    if schedule.key() != key:
        raise DataError(
            f"schedule {key}: its rows describe another one ({schedule.key()})", "the run is damaged, or newer than this xstage-bench"
        )
    return schedule


def _producers(producer_set: str, count: int) -> int | tuple[int, ...]:
    return count if producer_set == "even" else tuple(int(p) for p in producer_set.removeprefix("smid:").split(","))
