"""Tables of replayed task schedules: ``page.py [write] [FOLDER]``; record.py says how they are executed and predicted.

FOLDER holds a replay in each of ``workloads``, ``skeleton-wave-mma``, ``skeleton-wave-spin`` and ``skeleton-block-spin``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import load, main, number, origin, per_cent, table

from xstage_bench.measure.replay_document import errors, read_replay, summary_rows

skeletons = load(Path(__file__).with_name("skeletons.py"))
Row = dict[str, Any]
#: Behind the name of an original.
ADVISED = " advised"
KINDS = {
    "skeleton-wave-spin": "waves, spinning",
    "skeleton-wave-mma": "waves, tensor cores",
    "skeleton-block-spin": "blocks, spinning",
    "workloads": "workloads, tensor cores",
}
JUDGED = ("", "schedules", "total: median error", "p95", "largest", "part due to stores: median error", "of")


def tables(folder: Path) -> dict[str, str]:
    """Return every table; ``schedules`` has every workload."""
    found = {name: read_replay(folder / name / "replay.json.gz") for name in KINDS}
    rows = {name: {row["schedule"]: row for row in document["rows"]} for name, document in found.items()}
    return {
        "when": "\n".join(dict.fromkeys(origin(document) for document in found.values())),
        "judged": table(JUDGED, judged(found)),
        "choice": table(("", "choices", "gain measured, geomean", "largest", "claimed off by, points: median", "p90"), choice(rows)),
        "waves": waves(rows["skeleton-wave-spin"], rows["skeleton-wave-mma"]),
        "blocks": blocks(rows["skeleton-block-spin"]),
        "instrument": instrument(found["workloads"]["instrument"], found["skeleton-wave-spin"]["instrument"]),
        "schedules": workloads(rows["workloads"]),
    }


def judged(found: dict[str, Row]) -> Iterator[tuple[object, ...]]:
    """Yield the errors of predictions by replay; workloads and their advised forms apart."""
    for name, document in found.items():
        every = summary_rows(document)
        advised = [row for row in every if row["schedule"].endswith(ADVISED)]
        for label, some in ((KINDS[name], [r for r in every if r not in advised]), ("their advised forms", advised)):
            if (off := errors(some))["n"]:
                shares = (per_cent(off[f"total_{which}_error"]) for which in ("median", "p95", "largest"))
                yield label, off["n"], *shares, per_cent(off["stores_median_error"]), off["slowed"]


def choice(rows: dict[str, dict[str, Row]]) -> Iterator[tuple[object, ...]]:
    """Yield what the order with the shortest predicted total gains over the original, by the skeletons' tables."""
    for name, found in rows.items():
        if name == "workloads" or not all(row.get("predicted_us") for row in found.values()):
            continue
        groups: dict[str, list[Row]] = {}
        for row in found.values():
            head, _, order = row["schedule"].rpartition("-")
            groups.setdefault(head.removesuffix("-interleaved") if order.startswith("lead") else head, []).append(row)
        off, gains = [], []
        for group in groups.values():
            best = min(group, key=lambda row: float(row["predicted_us"]))
            gains.append(group[0]["total_us"]["value"] / best["total_us"]["value"])
            off.append(abs(group[0]["predicted_us"] / best["predicted_us"] - gains[-1]))
        quantiles = (number(np.quantile(off, q), 1, 0.01) for q in (0.5, 0.9))
        yield KINDS[name], len(gains), f"{geometric_mean(gains):.3f}", f"{max(gains):.3f}", *quantiles


def _pair(measured: float, first: float | None) -> str:
    return f"{measured:.3f}" + ("" if first is None else f" / {first:.3f}")


def waves(spin: dict[str, Row], mma: dict[str, Row], count: int = 16) -> str:
    """Total over the same schedule without stores: here / first probes, and with tensor-core work in brackets."""
    lines = []
    for (shape, dtype), first in skeletons.FIRST_WAVE.items():
        names = [skeletons.wave_name(shape, dtype, count, *cell) for cell in skeletons.WAVE_CELLS]
        cells = (
            f"{_pair(spin[n]['slowdown']['value'], one)} ({mma[n]['slowdown']['value']:.3f})" for n, one in zip(names, first, strict=True)
        )
        lines.append((f"{shape} {dtype}", *cells))
    return table(("shape", "nothing waits: waves", "interleaved", "waves wait: waves", "interleaved, lead 1", "lead 2"), lines)


def blocks(found: dict[str, Row]) -> str:
    """Gain of the lead with the shortest total over waves: here / first probes."""
    lines = []
    for (shape, dtype), first in skeletons.FIRST_BLOCK.items():
        cells: list[str] = []
        for i, tokens in enumerate(skeletons.TOKENS):
            wave = found[f"{shape}-{dtype}-{tokens}-wave"]
            lead = min(skeletons.LEADS, key=lambda lead: float(found[f"{shape}-{dtype}-{tokens}-lead{lead:g}"]["total_us"]["value"]))
            best = found[f"{shape}-{dtype}-{tokens}-lead{lead:g}"]
            gain = _pair(wave["total_us"]["value"] / best["total_us"]["value"], first[2 * i] / first[2 * i + 1])
            cells += [f"{wave['slowdown']['value']:.3f}", f"{gain} ({lead:g})"]
        lines.append((f"{shape} {dtype}", *cells))
    return table(("shape", *(f"{n} tokens: {what}" for n in skeletons.TOKENS for what in ("waves", "gain (lead)"))), lines)


def instrument(mma: Row, spin: Row) -> str:
    """What the instrument costs itself, SM cycles and GB/s."""
    names = [name for name in mma if name in spin]
    return table(
        ("cost", "tensor cores", "spinning"), ((n.replace("_", " "), *(number(d[n]["value"], 0) for d in (mma, spin))) for n in names)
    )


def workloads(found: dict[str, Row]) -> str:
    """Every workload, us: as it is, predicted, and as advised."""
    lines = []
    for name, row in found.items():
        if name.endswith(ADVISED):
            continue
        total, bare, told = row["total_us"]["value"], row["no_store_us"]["value"], row.get("predicted_us") or np.nan
        cells = [f"{total:.1f}", f"{bare:.1f}", f"{told:.1f}", f"{100 * (told / total - 1):+.1f} %"]
        if (after := found.get(name + ADVISED)) is not None:
            advised = after["total_us"]["value"]
            cells += [f"{advised:.1f}", f"{total / advised:.3f}", f"{told / after['predicted_us']:.3f}"]
        lines.append((name, *cells, *[""] * (7 - len(cells))))
    head = ("schedule", "measured, us", "without stores", "predicted", "error", "advised, measured", "gain", "gain claimed")
    return table(head, lines)


def _verb(name: str) -> Any:
    def run(*words: str) -> None:
        getattr(load(Path(__file__).with_name("record.py")), name)(*words)

    return run


if __name__ == "__main__":
    main(__file__, tables, **{name: _verb(name) for name in ("advise", "record", "predict", "costs")})
