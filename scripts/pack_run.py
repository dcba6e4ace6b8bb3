"""Write the parts of a recorded run as one, rows of one schedule together: ``python scripts/pack_run.py FROM TO``.

For runs that are kept in the repository: the same rows in a quarter less. Nothing is left out; the column ``order`` says in which order
they were measured. JSON beside the parts is written without indentation, other files are copied.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa

from xstage_bench.record.parts import COLUMNS, part_name, read_table, write_table

ORDER = ("probe", "flavour", "schedule", "process", "repetition", "burst", "producer")


def main(source: Path, out: Path) -> None:
    """Copy a run folder; `out` must not exist."""
    out.mkdir(parents=True)
    for item in source.iterdir():
        if item.suffix == ".json" and item.name != "manifest.json":
            (out / item.name).write_text(json.dumps(json.loads(item.read_text()), separators=(",", ":"), allow_nan=False) + "\n")
        elif item.is_file():
            shutil.copy(item, out / item.name)
        elif item.name in COLUMNS:
            parts = [read_table(path, COLUMNS[item.name]) for path in sorted(item.glob("part-*.parquet"))]
            table = pa.concat_tables(parts)
            table = table.sort_by([(name, "ascending") for name in ORDER if name in table.column_names])
            coded = [c.combine_chunks().dictionary_encode() if pa.types.is_string(c.type) else c for c in table.columns]
            (out / item.name).mkdir()
            write_table(out / item.name / part_name(0), pa.Table.from_arrays(coded, names=table.column_names), level=19)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
