"""The yardsticks beside R: a run that copies wrongly or fails is said, the numbers are what was timed, and the report shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xstage_bench.errors import DataError
from xstage_bench.io.json_file import write_json
from xstage_bench.measure import copies
from xstage_bench.schedule.device import Execution, Gpu, Node
from xstage_bench.schedule.trace import Trace
from xstage_bench.show.report_tables import copies_table

SMIDS = tuple(range(132))
NODE = Node((Gpu(0, "A", SMIDS, 2000.0), Gpu(1, "A", SMIDS, 2000.0)), ((0, 1), (1, 0)), 32.0, 478.0, None, ("st.v4", "bulk.2048"))


class Emulated:
    """A link of 400 GB/s for copies and 370 for stores; GPU 1 as a source copies wrongly."""

    backend = "cuda"

    def __init__(self, process: int = 0) -> None:
        self.process = process

    def node(self) -> Node:
        return NODE

    def verify(self, source: int, destination: int) -> None: ...

    def close(self) -> None: ...

    def copy(self, source: int, destination: int, size: int, loops: int, samples: int, warmups: int, method: str) -> dict[str, Any]:
        done = size if method == "copy_engine" else size // 4096 * 4096
        return {"bytes": done, "ms": [done * loops / 400e6 * (1 + 0.01 * i) for i in range(samples)], "wrong": 3 * source}

    def measure(self, executions: Sequence[Execution]) -> Iterator[Trace]:
        for e in executions:
            k = e.schedule.producer_count
            span = e.schedule.bursts[0].bytes * k / (371.0 if e.schedule.flavour == "bulk.2048" else 370.0)
            drain = np.full((1, k), 2000.0)  # 1 us, of which the span has to take account
            start = np.zeros((1, k))
            yield Trace(e.schedule, np.arange(k), drain, drain, start, start + span - 1000.0, drain, 2000.0)


def test_rates_shares_and_the_pair_that_copies_wrongly() -> None:
    document = copies.measure_copies(Emulated, None, processes=2)
    assert list(document["failed_pairs"]) == ["1>0"]
    assert "3 wrong 16-byte words after copy_engine" in document["failed_pairs"]["1>0"]
    rows = {r.what: r for r in document["rows"] if r.pair == "0>1"}
    assert set(rows) == {"copy_engine", "copy_kernel", "st.v4", "bulk.2048"}, "flavours that the node does not know are left out"
    assert rows["copy_engine"].gb_per_s == pytest.approx(400 / 1.01, rel=1e-4), "the median of three samples"
    assert rows["st.v4"].gb_per_s == pytest.approx(370.0, rel=1e-4), "to the end of the fence, not of the issue"
    assert rows["st.v4"].share_of_line == pytest.approx(370 / 478, abs=1e-4)
    assert (rows["copy_engine"].n, rows["st.v4"].n) == (6, 2 * copies.EXECUTIONS)
    best = copies.best_stores(document["rows"], "0>1")
    assert best is not None
    assert best.what == "bulk.2048"
    assert copies.best_stores(document["rows"], "1>0") is None
    none = copies.summarise("0>1", "st.v4", [[], []], 478.0)
    assert (none.gb_per_s, none.half_width, none.share_of_line, none.n, none.reason) == (None, None, None, 0, "no valid samples")


def test_the_document_is_read_back_strictly(tmp_path: Path) -> None:
    assert copies.load_copies(tmp_path) == []
    document = copies.measure_copies(Emulated, [(0, 1)], processes=1)
    write_json(tmp_path / copies.COPIES_NAME, document)
    assert copies.load_copies(tmp_path) == document["rows"]
    (tmp_path / copies.COPIES_NAME).write_text(json.dumps({"schema_version": 99, "rows": []}))
    with pytest.raises(DataError, match="99"):
        copies.load_copies(tmp_path)


def test_the_report_shows_them_beside_the_line_rate() -> None:
    rows = [copies.summarise("0>1", what, [[396.0, 397.0], [396.4]], 478.0) for what in ("copy_engine", "st.v4")]
    manifest: Any = SimpleNamespace(node=Node((), (), 32.0, 478.0))
    shown = copies_table([*rows, copies.summarise("1>0", "st.v2", [], 478.0)], manifest)
    assert shown is not None
    assert [row[1] for row in shown.rows] == ["copy engine", "st.v4", "st.v2"]
    assert shown.rows[0][2].startswith("396.4 ±")
    assert shown.rows[0][3] == "82.9 %"
    assert "no valid samples" in shown.rows[2][2]
    assert "478 GB/s" in shown.note
    assert copies_table([], manifest) is None
