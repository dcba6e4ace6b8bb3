"""Whether the fitted rates and the links under them can be believed: above the line rate, far below it, unlike in the two directions; links
that are down, and error counters that nobody could read. What was not read is not fine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xstage_bench.judge.of_run import deltas_of_run, measured_gpus
from xstage_bench.machine.finding import Finding
from xstage_bench.machine.gpus import find_gpu
from xstage_bench.model.document import Model, PairModel
from xstage_bench.model.headline import headline_rate
from xstage_bench.record.manifest import Manifest

#: R over the line rate of the pair: headers alone take a fifth (clean: 0.77); beyond the line rate nothing can go.
ABOVE, LOW, FAR_TOO_LOW = 1.02, 0.5, 0.1
#: The two directions of a link (clean: 0.0005).
ASYMMETRY = 0.05
COUNTERS = ("replay", "recovery", "crc")
_FABRIC = "nvidia-smi nvlink -s; nvidia-smi nvlink -e; xstage doctor"


def rate_findings(manifest: Manifest, model: Model) -> list[Finding]:
    """Hold every fitted rate against the line rate of its pair, and each pair against its other direction."""
    remote = [p for p in model.pairs if not p.is_local]
    found = [f for pair in remote for f in _against_line(manifest, pair)]
    plain = {p.pair: rate[0].value for p in remote if _plain(p) and (rate := headline_rate(p)) is not None and rate[0].value is not None}
    for name, there in plain.items():
        back = plain.get(">".join(reversed(name.split(">"))))
        if name.split(">") > name.split(">")[::-1] or back is None:
            continue
        slow, fast = sorted((there, back))
        if not slow >= (1 - ASYMMETRY) * fast:
            words = f"{there:.4g} GB/s one way and {back:.4g} GB/s back: the slower has {_percent(slow / fast)} of the faster"
            found.append(Finding(f"pair {name} directions", "warn", words, f"one direction is sick, or was not alone: {_FABRIC}"))
    return found


def _against_line(manifest: Manifest, pair: PairModel) -> Iterator[Finding]:
    line, name = _line_rate(manifest, pair), f"pair {pair.pair} rate"
    if line is None:
        if _plain(pair):
            yield Finding(name, "waived", "the line rate of this pair is not known: R is held against nothing")
        return
    values = [e.drain_gb_per_s.value for e in pair.burst_gap] + [r.makespan.value for r in pair.drain]
    most = max((v for v in values if v is not None), default=0.0)
    if most > ABOVE * line:
        detail = f"{most:.4g} GB/s is {_percent(most / line)} of the line rate of {line:.4g} GB/s: no link carries that"
        yield Finding(name, "fail", detail, "the times or the link's description are wrong: xstage topo; xstage run again")
        return
    rate = headline_rate(pair)
    sms = next((gpu.sm_count for gpu in manifest.node.gpus if pair.pair.startswith(f"{gpu.index}>")), 0)
    if not _plain(pair) or rate is None or rate[0].value is None or 2 * rate[1] < sms:
        return  # a few SMs do not fill a link
    share = rate[0].value / line
    words = f"{rate[0].value:.4g} GB/s is {_percent(share)} of the line rate of {line:.4g} GB/s"
    if share >= LOW:
        yield Finding(name, "ok", words)
    else:
        yield Finding(name, "fail" if share < FAR_TOO_LOW else "warn", f"{words}: far too low", f"another user, or links down: {_FABRIC}")


def _line_rate(manifest: Manifest, pair: PairModel) -> float | None:
    """What the links of the pair carry, by the run; else what all links of this kind of GPU do."""
    known = manifest.node.line_rate(pair.pair)
    if known is not None or manifest.node.pair_links is not None or pair.pair.endswith(">-1"):
        return known
    facts = [find_gpu(name) for name in {gpu.name for gpu in manifest.node.gpus}]
    return facts[0].link.line_gb_per_s.value if len(facts) == 1 and facts[0] is not None else None


def link_findings(manifest: Manifest) -> list[Finding]:
    """Say which links of the run's GPUs were down, and whose state or error counters were not read. Nothing of a simulated run."""
    if manifest.simulated:
        return []
    if (manifest.environment_after or manifest.environment_before) is None:
        return [Finding("links", "warn", "the state of the links was not recorded", "xstage run on the node itself, with nvidia-ml-py")]
    mine = measured_gpus(manifest)
    return [f for gpu in manifest.node.gpus if gpu.index in mine for f in _links_of(manifest, gpu.index, gpu.uuid)]


def _links_of(manifest: Manifest, index: int, uuid: str | None) -> Iterator[Finding]:
    facts = [(e or {}).get("gpus") or [] for e in (manifest.environment_before, manifest.environment_after)]
    known = [g for gpus in facts for g in gpus if g.get("uuid") == uuid and g.get("links")]
    states: list[list[dict[str, Any]]] = [g["links"] for g in known]
    if not any(link.get("active") for links in states for link in links):
        return  # a GPU without NVLink, or one whose pairs are refused before they are measured
    fewest = min(states, key=lambda links: sum(bool(link.get("active")) for link in links))
    up = sum(bool(link.get("active")) for link in fewest)
    asked = None if known[-1].get("links_state") == "unknown" else known[-1].get("links_expected")
    expected = len(fewest) if asked is None else int(asked)
    if up < expected:
        unread = sum(link.get("active") is None for link in fewest)
        words = f"{up} of {expected} links were up" + (f", {unread} could not be read" if unread else "")
        yield Finding(f"GPU {index} links", "warn", words, _FABRIC)
    risen = deltas_of_run(manifest).get(uuid or "") or {}
    unread_counters = [c for c in COUNTERS if risen.get(c) is None]
    if not any(value is not None for key, value in risen.items() if key != "links" and not key.startswith("bytes_")):
        words = f"the error counters of the links could not be read ({', '.join(unread_counters)}): whether errors slowed them is unknown"
        yield Finding(f"GPU {index} link errors", "warn", words, "nvidia-smi nvlink -e, before and after a run")


def _plain(pair: PairModel) -> bool:
    return (pair.flavour, pair.layout) == ("st.v4", "contiguous")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
