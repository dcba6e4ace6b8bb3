"""Two or three nodes are no population: they are held against each other as a ratio, and against the recorded node of their kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xstage_bench.judge.fleet.reading import METRICS, NodeLinks
from xstage_bench.judge.yardstick import reference_rate
from xstage_bench.machine.gpus import find_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRatio:
    """One number of one node over that of `against`: another node, or a reference node that ships with this package."""

    metric: str
    node: str
    against: str
    ratio: float

    def sentence(self) -> str:
        """Say it as a share."""
        return f"{self.metric} of {self.node} is {100 * self.ratio:.3g} % of that of {self.against}"


def ratios(members: Sequence[NodeLinks]) -> list[NodeRatio]:
    """Return, for each number, the lowest node over the highest, by medians of their links; and the drain rates over the reference's.

    A simulated node is held against no recorded one.
    """
    found = []
    for metric in METRICS:
        known = {m.name: float(np.median(v[np.isfinite(v)])) for m in members if np.isfinite(v := m.values[metric]).any()}
        if len(known) > 1:
            low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
            if known[high] > 0:
                found.append(NodeRatio(metric=metric, node=low, against=high, ratio=known[low] / known[high]))
        reference = _reference(members[0]) if metric == "drain_gb_per_s" else None
        if reference is not None:
            name, rate = reference
            found += [NodeRatio(metric=metric, node=n, against=f"the reference node {name}", ratio=v / rate) for n, v in known.items()]
    return found


def _reference(node: NodeLinks) -> tuple[str, float] | None:
    names = {gpu.name for gpu in node.manifest.node.gpus}
    kind = find_gpu(names.pop()) if len(names) == 1 and not node.manifest.simulated else None
    if kind is None or kind.reference is None:
        return None
    rate = reference_rate(kind.reference)
    return None if not rate else (kind.reference, rate)
