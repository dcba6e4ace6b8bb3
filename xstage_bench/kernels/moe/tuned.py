"""What of the MoE layer's choices was fitted to recordings of one GPU, in the words of a document; the values stand where they are used."""

from __future__ import annotations

from xstage_bench.kernels.moe.build import LONG_LAYER_TILES
from xstage_bench.kernels.moe.forecast import ALIKE, CALM, CALM_UNEVEN, LEADS, ONE_BLOCK, PREFERRED, SURELY_SLOWER, UNEVEN
from xstage_bench.machine.gpus import Default

_SUITE = "three runs of the suite on 2 x H200, 2026-11-29 and -30 (results/h200-x2/moe)"
_LEADS = "48 searches of the suite on 2 x H200 (results/h200-x2/moe)"

TUNED: tuple[Default, ...] = (
    *(Default(name="lead tried", value=lead, unit="Linear-1 tiles per CTA", source=_LEADS) for lead in LEADS),
    Default(
        name="lead preferred of those alike", value=PREFERRED[0], unit="Linear-1 tiles per CTA", source="the replayed skeleton, 2 x H200"
    ),
    Default(
        name="predictions alike within", value=ALIKE, unit="of the faster", source="the predictor's median error on this kernel, 2 x H200"
    ),
    Default(name="leads slower than waves from", value=SURELY_SLOWER, unit="of the wave's time", source=_SUITE),
    Default(name="calm below", value=CALM, unit="of R", source=_SUITE),
    Default(name="calm below, experts uneven,", value=CALM_UNEVEN, unit="of R", source=_SUITE),
    Default(name="experts uneven from", value=UNEVEN, unit="busiest expert over the mean", source=_SUITE),
    Default(name="weights read once below", value=ONE_BLOCK, unit="blocks of an expert", source=_SUITE),
    Default(name="shorter ring of stages from", value=LONG_LAYER_TILES, unit="tiles per SM", source="one run of the suite on 2 x H200"),
)
