"""A model as one C++17 header: the text of ``cuda/xstage_stage.cuh`` and the model's numbers as constexpr."""

from __future__ import annotations

import re
from itertools import groupby

from xstage_bench.io.assets import asset_dir
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.stage import Stage
from xstage_bench.show.export.document import ExportedModel, SmShare

_PER_LINE = 12


def as_cuh(exported: ExportedModel) -> str:
    """Return the header: self-contained, for nvcc, NVRTC and host compilers."""
    groups = [(key, list(group)) for key, group in groupby(exported.stages, key=lambda s: (s.pair, s.flavour, s.layout))]
    shares = {s.pair: s for s in exported.sm_share}
    parts = [_head(exported), (asset_dir("cuda") / "xstage_stage.cuh").read_text().rstrip(), "", "namespace xstage {"]
    parts += [_namespace(*key, members, shares.get(key[0])) for key, members in groups]
    return "\n".join([*parts, "}  // namespace xstage", ""])


def namespace(pair: str, flavour: str, layout: str) -> str:
    """Return the C++ name of a pair, flavour and layout: ``pair_0_1_st_v4``; contiguous is left out."""
    source, _, destination = pair.partition(">")
    words = ["pair", source, "host" if destination == "-1" else destination, flavour, *([] if layout == "contiguous" else [layout])]
    return re.sub(r"[^A-Za-z0-9]+", "_", "_".join(words))


def _head(exported: ExportedModel) -> str:
    p = exported.provenance
    rows = {
        "source": p.source,
        "GPU": ", ".join([p.gpu, *p.gpu_uuids]),
        "driver": p.driver or "not recorded",
        "measured": p.measured or "not recorded",
        "backend": p.backend + (", SIMULATED: no number here was measured" if p.simulated else ""),
        "model.json": p.model,
        "written by": f"xstage-bench {p.xstage_bench}, xstage export --format cuh",
    }
    lines = [f"{name:11} {_comment(text)}" for name, text in rows.items()]
    return "\n".join(
        [
            "// Issue time T0, drain rate R and outstanding capacity Q of remote stores, with 95 % intervals.",
            *(f"// {x}" for x in lines),
            "",
        ]
    )


def _comment(text: str) -> str:
    # A backslash or a line end would let a file's name reach out of its comment.
    return "".join(c if c.isprintable() and c != "\\" else "?" for c in text)


def _namespace(pair: str, flavour: str, layout: str, members: list[Stage], share: SmShare | None) -> str:
    name = namespace(pair, flavour, layout)
    lines = [f"// {pair}, {flavour}, {layout}", f"namespace {name} {{", f"static constexpr Stage stages[{len(members)}] = {{"]
    lines += [f"    {_stage(s)}," for s in members]
    lines += ["};", "// A constant expression: constexpr xstage::Stage mine = xstage::" + name + "::stage(132, 4);"]
    lines += ["XSTAGE_BOTH constexpr Stage stage(int producers, int warps) { return nearest(stages, producers, warps); }"]
    if share is not None:
        lines += _share(share.share)
    return "\n".join([*lines, f"}}  // namespace {name}", ""])


def _stage(s: Stage) -> str:
    limited = "true" if s.limited_by == "producer" else "false"
    fields = [
        f"{s.producers}, {s.warps}, {s.warp_store_bytes}",
        _float(s.sm_clock_mhz),
        f"{s.bytes}, {limited}",
        *(_number(e) for e in (s.t0_cycles, s.drain_gb_per_s, s.capacity_bytes)),
        _float(s.issue_base_cycles),
        _float(s.issue_cycles_per_store),
        *(_float(v or 0.0) for v in (s.rate_gb_per_s, s.stalled_gb_per_s, s.stalled_capacity_bytes)),
    ]
    return "{" + ", ".join(fields) + "}"


def _number(e: Estimate) -> str:
    if e.value is None:
        return "{0, 0, 0, false}"
    low, high = (e.value if bound is None else bound for bound in (e.low, e.high))
    return "{" + ", ".join([*map(_float, (e.value, low, high)), "true"]) + "}"


def _float(value: float) -> str:
    text = f"{value:.9g}"
    return (text if re.search(r"[.e]", text) else f"{text}.0") + "f"


def _share(share: list[float]) -> list[str]:
    rows = [share[i : i + _PER_LINE] for i in range(0, len(share), _PER_LINE)]
    return [
        "// Drain rate of an SM over the mean of all when every SM stores, by smid: units share the link, SMs their unit.",
        "XSTAGE_BOTH inline float sm_share(unsigned smid) {",
        f"  static constexpr float share[{len(share)}] = {{",
        *("      " + ", ".join(map(_float, row)) + "," for row in rows),
        "  };",
        f"  return smid < {len(share)}u ? share[smid] : 1.0f;",
        "}",
    ]
