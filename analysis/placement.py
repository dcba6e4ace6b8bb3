"""Issue time of each SM in a saturated burst: producers are served unequally, by where they sit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.show.figures import FAINT, MEASURED, Absent, FigureSpec, counted, label, new_figure

from ._common import pair_label, slowest_first

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from xstage_bench.model.document import Model, Validation
    from xstage_bench.record.reader import Run

#: A burst this many times its knee is saturated from nearly its start to its end.
SATURATED_KNEES = 4.0


def draw(run: Run, model: Model, validation: Validation | None) -> Figure | Absent:
    """Draw issue time over smid, and its distribution, for the largest saturated isolated burst on the most SMs."""
    chosen = _choose(run, model)
    if chosen is None:
        return Absent("no producer-by-producer times of a saturated isolated burst were recorded")
    pair, facts, rows = chosen
    clock_mhz = float(facts["sm_clock_mhz"])
    rows = rows.assign(issue_us=rows["issue_cycles"] / clock_mhz)
    middle = rows.groupby("smid")["issue_us"].median().sort_index()

    figure = new_figure(7.2, 3.2)
    left, right = figure.subplots(1, 2, width_ratios=[3.4, 1], sharey=True)
    left.scatter(rows["smid"], rows["issue_us"], s=7, color=FAINT, marker="o", linewidths=0, label="one repetition")
    even, odd = middle[middle.index % 2 == 0], middle[middle.index % 2 == 1]
    left.scatter(even.index, even, s=16, color=MEASURED, marker="o", label="median, even smid")
    left.scatter(odd.index, odd, s=16, facecolors="white", edgecolors=MEASURED, marker="s", linewidths=0.9, label="median, odd smid")
    left.axhline(float(middle.mean()), color="0.35", linewidth=0.9, linestyle=(0, (6, 2)), label="mean")
    left.set(xlabel="smid of the producer", ylabel="issue time (µs)")
    left.margins(x=0.02)
    left.legend(loc="best", ncols=2)
    right.hist(middle, bins=24, orientation="horizontal", color="0.75", edgecolor="0.3", hatch="////", linewidth=0.7)
    low, high = np.quantile(middle, [0.1, 0.9])
    right.axhspan(low, high, color="0.93", zorder=0)
    right.set(xlabel="SMs")
    right.set_title(f"10–90 %: {100 * (high - low) / middle.mean():.0f} % of the mean", fontsize=7.5, loc="left")
    size = f"{float(facts['bytes']) / 1024:g} KiB each, {int(facts['producers'])} SMs × {int(facts['warps'])} warps"
    heading = f"By where it sits, an SM waits {low:.3g} to {high:.3g} µs: {size}, {pair_label(pair)}"
    label(figure, run, f"n = {counted(rows['order'].nunique(), 'repetition')}", heading)
    return figure


def _choose(run: Run, model: Model) -> tuple[str, pd.Series, pd.DataFrame] | None:
    producers = run.producers()
    if producers.empty:
        return None
    samples = run.samples()
    facts = samples[
        (samples["start"] == "isolated") & (samples["bursts"] == 1) & (samples["kind"] == "measure") & (samples["status"] == "ok")
    ]
    key = ["schedule", "source", "destination", "order"]
    executed = facts[[*key, "producers", "warps", "bytes", "flavour", "sm_clock_mhz"]]
    rows = producers[(producers["burst"] == 0)].merge(executed, on=key)
    for fitted in slowest_first(model):
        source, _, destination = fitted.pair.partition(">")
        mine = rows[(rows["source"] == int(source)) & (rows["destination"] == int(destination)) & (rows["flavour"] == fitted.flavour)]
        kinds = mine.drop_duplicates("schedule").sort_values(["producers", "bytes", "warps", "schedule"], ascending=False)
        for _, kind in kinds.iterrows():
            entry = fitted.find(int(kind["producers"]), int(kind["warps"]))
            if entry is None or entry.knee_bytes.value is None or kind["bytes"] < SATURATED_KNEES * entry.knee_bytes.value:
                continue
            return fitted.pair, kind, mine[mine["schedule"] == kind["schedule"]]
    return None


FIGURE = FigureSpec(
    name="placement",
    title="Who waits in a saturated burst",
    caption=(
        "All SMs store the same bytes from the same moment. Were they served alike, all points would lie on the mean. Steps and "
        "groups show the tree of arbiters on the way to the link: an SM whose branch has fewer active members gets a larger "
        "share. The pattern belongs to this GPU."
    ),
    draw=draw,
    order=90,
)
