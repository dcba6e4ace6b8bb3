"""Tables and figure of scenes with companions: ``xstage scene --study pulls --study local --study gap_work --study producers_per_sm``.

``page.py [write] [FOLDER]``; the right panel of the figure is of the scenes beside, in ``places``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scenes import Row, rate, scenes, when
from tables import half, main, number, table

from xstage_bench.show.figures import new_figure

PULLS = {"1, same egress": "the pushes' egress", "0, opposite": "the other direction"}
_GAP = re.compile(r"(?P<kib>\d+) KiB, gap (?P<gap>\d+), idle")
_SHARED = re.compile(r"(?P<n>\d+) producer\(s\) per SM, gap (?P<gap>\d+)")


def tables(folder: Path) -> dict[str, str]:
    """Return every table."""
    by = {row["name"]: row for row in scenes(folder)}
    return {"when": when(folder), "pulls": pulls(by), "local": local(by), "gap": gap(by), "producers": producers(by)}


def sms_of(by: dict[str, Row]) -> list[int]:
    """Return how many SMs pulled."""
    return sorted({int(m[1]) for name in by if (m := re.match(r"pull by (\d+) SMs", name))})


def pulls(by: dict[str, Row]) -> str:
    """Pulls alone and with pushes, by what they are loaded with and where their data is."""
    lines = []
    for where, said in PULLS.items():
        for sms in sms_of(by):
            cells: list[str] = []
            for kind in ("pull", "pull.bulk"):
                alone, both = (by[f"{kind} by {sms} SMs of {where}{end}"] for end in (", alone", ""))
                cells += [rate(alone["company"][0], 0), rate(both["company"][0], 0), rate(both["schedules"][0], 0)]
            lines.append((said, sms, *cells))
    each = ("alone", "with pushes", "pushes")
    return table(("data on", "SMs that pull", *(f"16 B: {e}" for e in each), *(f"bulk: {e}" for e in each)), lines)


def local(by: dict[str, Row]) -> str:
    """Copies within one GPU's memory beside pushes."""
    lines = []
    for name in (n for n in by if n.startswith("copy in ") and not n.endswith("alone")):
        row, alone = by[name], by[f"{name}, alone"]
        drain = row["schedules"][0]["drain_mean_cycles"]["value"]
        copied = (rate(one["company"][0], 0) for one in (alone, row))
        lines.append((name.removeprefix("copy in "), *copied, rate(row["schedules"][0]), number(drain)))
    row = by["push alone"]["schedules"][0]
    lines.insert(0, ("none", None, None, rate(row), number(row["drain_mean_cycles"]["value"])))
    return table(("copies in", "alone, GB/s", "with pushes", "pushes, GB/s", "fence after the pushes, cycles"), lines)


def gap(by: dict[str, Row]) -> str:
    """Periodic bursts with idle gaps and with tensor-core work in them; steady state."""
    lines = []
    for m in filter(None, map(_GAP.fullmatch, by)):
        idle, busy = (by[f"{m['kib']} KiB, gap {m['gap']}, {work}"]["schedules"][0] for work in ("idle", "mma"))
        values = ("sm_clock_mhz", "issue_mean_ns")
        cells = [cell for one in (idle, busy) for cell in (rate(one), *(number(one[v]["value"]) for v in values))]
        lines.append((m["kib"], number(float(m["gap"])), *cells))
    each = ("GB/s", "SM clock, MHz", "issue, ns")
    return table(("KiB per SM", "gap asked, cycles", *(f"idle: {e}" for e in each), *(f"mma: {e}" for e in each)), lines)


def producers(by: dict[str, Row]) -> str:
    """The same bytes of an SM by one, two or four producers."""
    found = {(int(m["gap"]), int(m["n"])): by[m[0]] for m in filter(None, map(_SHARED.fullmatch, by))}
    counts = sorted({n for _, n in found})
    lines = []
    for asked in sorted({g for g, _ in found}):
        rows = [found[asked, n] for n in counts]
        issue = [row["schedules"][0]["issue_mean_cycles"] for row in rows]
        lines.append((number(float(asked)), *(half(row["total_gb_per_s"]) for row in rows), *(number(i["value"]) for i in issue)))
    return table(("gap, cycles", *(f"{n}: total GB/s" for n in counts), *(f"{n}: issue, cycles" for n in counts)), lines)


def draw(folder: Path, out: Path) -> None:
    """What pulls cost pushes on one egress and from the pushing GPU, and each direction alone and both."""
    rows = scenes(folder) + scenes(Path(__file__).parents[1] / "places")  # which holds the directions
    by = {row["name"]: row for row in rows}
    figure = new_figure(11, 3.4)
    left, middle, right = figure.subplots(1, 3)
    _pulls(left, by, "1, same egress", "pulls leave by the pushes' port")
    _pulls(middle, by, "0, opposite", "the pushing GPU pulls")
    left.set_ylabel("GB/s")
    for label, name, colour in (("one direction", "pair ", "0.5"), ("both", "both directions", "black")):
        for source, style in ((0, "o-"), (1, "s--")):
            found = {s["bytes"] / 1024: s["gb_per_s"]["value"] for r in rows if r["name"].startswith(name) for s in r["schedules"]
                     if s["source"] == source and 49152 <= s["bytes"] < 1048576}  # fmt: skip
            if found:
                line = zip(*sorted(found.items()), strict=True)
                right.plot(*line, style, color=colour, markersize=4, label=f"{label}, {source}>{1 - source}")
    right.set(xscale="log", xlabel="KiB per SM", title="both directions", ylim=(340, 400))
    right.set_xticks([64, 128, 256, 512], ["64", "128", "256", "512"])
    right.minorticks_off()
    right.legend(frameon=False, fontsize=7)
    figure.savefig(out / "company.png", dpi=90, metadata={"Software": None})


def _pulls(axes: Any, by: dict[str, Row], where: str, title: str) -> None:
    sms = sms_of(by)
    for kind, style, name in (("pull", "o-", "16 B"), ("pull.bulk", "s--", "bulk")):
        both = [by[f"{kind} by {n} SMs of {where}"] for n in sms]
        lines = {
            f"{name} pulls alone": ("0.7", [by[f"{kind} by {n} SMs of {where}, alone"]["company"][0] for n in sms]),
            f"{name} pulls": ("0.35", [r["company"][0] for r in both]),
            f"pushes, {name}": ("#c0392b", [r["schedules"][0] for r in both]),
        }
        for label, (colour, found) in lines.items():
            axes.plot(sms, [one["gb_per_s"]["value"] for one in found], style, color=colour, markersize=4, linewidth=1, label=label)
    axes.set(xscale="log", xlabel="SMs that pull", title=title, ylim=(0, 400))
    axes.set_xticks(sms, [str(n) for n in sms])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=7)


if __name__ == "__main__":
    main(__file__, tables, draw)
