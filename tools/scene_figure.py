"""Draw docs/images/company.png from the recorded scenes: what pulls cost pushes, and what the other direction costs.

python tools/scene_figure.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results" / "h200-x2" / "2026-11-29-places"
SMS = (4, 8, 16, 66)


def main() -> None:
    """Read the documents of `xstage scene` and write the figure."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    company, directions = (json.loads((folder / f"{name}.json").read_text())["rows"] for name in ("company", "directions"))
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), constrained_layout=True)
    by_name = {row["name"]: row for row in company}
    _pulls(left, by_name, "1, same egress", "pulls leave by the pushes' port")
    _pulls(middle, by_name, "0, opposite", "the pushing GPU pulls")
    left.set_ylabel("GB/s")
    for label, name, colour in (("one direction", "pair", "0.5"), ("both", "both directions", "black")):
        for source, style in ((0, "o-"), (1, "s--")):
            points = [(s["bytes"] / 1024, s["gb_per_s"]["value"]) for r in directions if r["name"].startswith(name) for s in r["schedules"]
                      if s["source"] == source and s["bytes"] >= 49152]  # fmt: skip
            right.plot(*zip(*points, strict=True), style, color=colour, markersize=4, linewidth=1, label=f"{label}, {source}>{1 - source}")
    right.set(xscale="log", xlabel="KiB per SM", title="both directions", ylim=(340, 400))
    right.legend(frameon=False, fontsize=7)
    path = ROOT / "docs" / "images" / "company.png"
    figure.savefig(path, dpi=110)
    print(path)


def _pulls(axes: Any, rows: dict[str, Any], where: str, title: str) -> None:
    for kind, style in (("pull", "o-"), ("pull.bulk", "s--")):
        alone = [rows[f"{kind} by {n} SMs of {where}, alone"]["company"][0]["gb_per_s"]["value"] for n in SMS]
        both = [rows[f"{kind} by {n} SMs of {where}"] for n in SMS]
        name = "16 B" if kind == "pull" else "bulk"
        axes.plot(SMS, alone, style, color="0.7", markersize=4, linewidth=1, label=f"{name} pulls alone")
        axes.plot(
            SMS, [r["company"][0]["gb_per_s"]["value"] for r in both], style, color="0.35", markersize=4, linewidth=1, label=f"{name} pulls"
        )
        axes.plot(
            SMS,
            [r["schedules"][0]["gb_per_s"]["value"] for r in both],
            style,
            color="#c0392b",
            markersize=4,
            linewidth=1,
            label=f"pushes, {name}",
        )
    axes.set(xscale="log", xticks=SMS, xticklabels=SMS, xlabel="SMs that pull", title=title, ylim=(0, 400))
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=7)


if __name__ == "__main__":
    main()
