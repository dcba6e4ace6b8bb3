"""What a killed run left in its folder: throw away what was never committed, say what need not be measured again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xstage_bench.io.atomic import remove_leftovers
from xstage_bench.record.columns import SAMPLES, TRACES
from xstage_bench.record.parts import PRODUCERS_FOLDER, SAMPLES_FOLDER, TRACES_NAME, part_name, part_numbers, read_table
from xstage_bench.record.rows import Columns

_COUNTED = ("schedule", "kind", "source", "process", "repetition", "order", "burst", "status")


def remove_temporary(folder: Path) -> None:
    """Remove the temporary files of a killed writer."""
    for place in (folder, folder / SAMPLES_FOLDER, folder / PRODUCERS_FOLDER):
        remove_leftovers(place)


def remove_uncommitted(folder: Path) -> None:
    """Remove the producers parts that have no samples part: their executions will be measured again."""
    producers = folder / PRODUCERS_FOLDER
    for number in set(part_numbers(producers)) - set(part_numbers(folder / SAMPLES_FOLDER)):
        (producers / part_name(number)).unlink()


def committed(folder: Path) -> Iterator[Columns]:
    """Yield, part by part, the columns that say which executions are on disk and how they ended; DataError when a part is damaged."""
    for number in part_numbers(folder / SAMPLES_FOLDER):
        table = read_table(folder / SAMPLES_FOLDER / part_name(number), SAMPLES, only=_COUNTED)
        yield {name: table.column(name).to_numpy(zero_copy_only=False) for name in _COUNTED}


def timelines(folder: Path) -> dict[tuple[str, int, int], Columns]:
    """Return the exemplars on disk by schedule key, process and repetition."""
    path = folder / TRACES_NAME
    if not path.exists():
        return {}
    groups = read_table(path, TRACES).to_pandas().groupby(["schedule", "process", "repetition"], sort=False)
    return {(str(k), int(p), int(r)): {c.name: rows[c.name].to_numpy() for c in TRACES} for (k, p, r), rows in groups}
