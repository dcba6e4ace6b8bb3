"""Table of T0, R and Q into memory of the same process, by CUDA IPC and by NVSHMEM: ``page.py [write] [FOLDER]``.

FOLDER holds a document for each launch of each memory: ``xstage measure processes --memory MEMORY``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import interval, main, origin, table

from xstage_bench.io.json_file import read_json
from xstage_bench.measure.compare_memories import compare

HEAD = ("memory", "launches", "pair", "warps", "T0 of 32 KiB, cycles", "R, GB/s", "Q per SM, kB")


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    documents = [read_json(path, dict[str, Any]) for path in sorted(folder.glob("*.json.gz"))]
    about = folder / "about.json"
    lines = [
        (
            *(row[key] for key in ("memory", "processes", "pair", "warps")),
            interval(row["t0_cycles"], 1),
            interval(row["drain_gb_per_s"], 1),
            interval(row["capacity_bytes_per_producer"], 2, 1e3),
        )
        for row in compare(documents)["rows"]
    ]
    said = read_json(about, dict[str, Any]) if about.exists() else None
    return {"when": origin(documents[0], said), "memories": table(HEAD, lines)}


if __name__ == "__main__":
    main(__file__, tables)
