"""Tables of what a fence or release costs against the backlog it meets: a run of the probe ``fences`` (``page.py [write] [FOLDER]``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import interval, main, number, origin, table

from xstage_bench.io.json_file import read_json
from xstage_bench.model.run_fit import fit_run
from xstage_bench.record.reader import load_run

PAIR, WARP_STORE = (0, 1), 4 * 512  # bytes of one warp-store of each of four warps
SHOWN = (
    *("fence.cta", "fence.gpu", "red.release.gpu", "fence.sys", "red.release.sys", "red.release.gpu@warp", "red.release.sys@warp"),
    *("red.release.gpu@sm", "red.release.sys@sm"),
)
LOCAL = ("red.release.gpu", "red.release.sys")


def tables(folder: Path) -> dict[str, str]:
    """Return every table; ``all`` has the law of every flavour and number of SMs."""
    run = load_run(folder)
    rows = run.samples()
    rows = rows[(rows["probe"] == "fences") & (rows["status"] == "ok") & (rows["kind"] == "measure") & (rows["source"] == PAIR[0])]
    full = int(rows["producers"].max())
    laws = [
        (model.flavour, law)
        for model in fit_run(run).pairs
        if model.pair == "{}>{}".format(*PAIR)
        for law in sorted(model.release, key=lambda r: (-r.producers, r.completion.partition("@")[2], r.completion))
    ]
    head = ("completion", "empty, cycles", "R, GB/s", "held per SM, kB", "saturated, cycles", "error, median / largest, %")
    plain = [law for flavour, law in laws if flavour == "st.v4" and law.producers == full]
    shown = [(law.completion, *_law(law)) for law in plain if law.completion in SHOWN[1:]]
    every = [(flavour, law.producers, law.completion, *_law(law)) for flavour, law in laws]
    return {
        "when": origin(read_json(folder / "manifest.json", dict[str, Any])),
        "backlog": backlog(rows[rows["producers"] == full]),
        "law": table(head, shown),
        "lag": lag(rows[rows["producers"] == full]),
        "all": table(("flavour", "SMs", *head), every),
    }


def _law(law: Any) -> tuple[str, ...]:
    error = f"{100 * (law.median_error or 0):.0f} / {100 * (law.largest_error or 0):.0f}"
    held = interval(law.held_bytes, 1, 1000 * law.producers)
    return interval(law.empty_cycles), interval(law.drain_gb_per_s), held, interval(law.saturated_cycles), error


def backlog(rows: pd.DataFrame) -> str:
    """Median cycles of each completion by warp-stores per warp just before, and of two after local stores."""
    once = rows[(rows["bursts"] == 1) & (rows["flavour"] == "st.v4")]
    typical = once.groupby(["destination", "completion", "bytes"])["drain_mean_cycles"].median().unstack()
    wanted = [(PAIR[1], name, name) for name in SHOWN] + [(PAIR[0], name, f"*local* {name}") for name in LOCAL]
    lines = [(label, *map(number, typical.loc[(where, name)])) for where, name, label in wanted]
    return table(("warp-stores per warp", *(int(size) // WARP_STORE for size in typical.columns)), lines)


def lag(rows: pd.DataFrame) -> str:
    """Median cycles of a completion so many cycles after the burst."""
    late = rows[rows["bursts"] == 2]
    size = late[late["burst"] == 0].groupby("schedule")["bytes"].first()
    after = late[late["burst"] == 1].assign(size=lambda d: d["schedule"].map(size))
    typical = after.groupby(["completion", "size", "gap_cycles"])["drain_mean_cycles"].median().unstack()
    lines = [(name, int(size) // WARP_STORE, *map(number, cells)) for (name, size), cells in typical.iterrows()]
    return table(("completion", "warp-stores per warp", *(number(gap) for gap in typical.columns)), lines)


if __name__ == "__main__":
    main(__file__, tables)
