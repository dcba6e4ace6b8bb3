"""What ``cuda/moe.cu`` is compiled for and the plan that one launch reads; pure numpy. The compiler compares the sizes with the structs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.kernels.gpu import HopperBuild

MAX_RANKS = 8
PLAN = np.dtype(
    [(n, "<u8", 16) for n in ("rows", "w1", "act", "w2")]
    + [(n, "<u8") for n in ("tasks", "first", "block_expert", "block_rows", "ready", "arrived", "row_slot", "row_source")]
    + [(n, "<u8") for n in ("row_scale", "act_scale", "w1_scale", "w2_scale", "gathered", "activations")]
    + [(n, "<u8", MAX_RANKS) for n in ("sources", "source_scales", "slots", "finished", "started")]
    + [(n, "<u8") for n in ("own_slots", "own_finished", "own_started", "weights", "slot_of", "out", "stamps", "report", "timeout_ns")]
    + [(n, "<u4") for n in ("hidden", "inter", "blocks", "ranks", "epoch", "tokens", "top_k", "reduce")]
    + [("result_scale", "<f4"), ("result_inverse", "<f4"), ("pad", "<u4", 8)]
)
STAMP = np.dtype(
    [(n, "<u8") for n in ("turn_ns", "begin_ns", "computed_ns", "stored_ns", "published_ns")] + [("smid", "<u4"), ("word", "<u4")]
)
REPORT = np.dtype(
    [("begin_ns", "<u8"), ("begin_clock", "<u8"), ("stored_ns", "<u8", 2)] + [(n, "<u8") for n in ("arrived_ns", "arrived_clock", "end_ns")]
)
NO_ROW = 0xFFFFFFFF
OWNER_SHIFT = 28

Combine = Literal["none", "bf16", "f32", "fp8"]
COMBINES: tuple[Combine, ...] = ("none", "bf16", "f32", "fp8")
#: Bytes of one element of a result row.
COMBINE_BYTES: dict[str, int] = {"none": 0, "bf16": 2, "f32": 4, "fp8": 1}

#: Bytes of a row that one stage of operands sums over.
STEP_BYTES = 128
#: How many stages of operands can be asked for ahead. Three do not cover the latency; more than five have no room in every build.
FEWEST_STAGES, MOST_STAGES = 4, 5
#: Tiles per SM, of both kinds, from which the shorter ring is faster: it keeps SMs that read the same weights in step, out of which a long
#: layer brings them; in a short one it only covers less latency. From one run of the suite (results/h200-x2/moe).
LONG_LAYER_TILES = 150
_STAGE_BYTES, _STAGED_BYTES, _SCALES_BYTES = 32768, 4096, 512  # the last two: of each of eight warps
_PULL_BUFFERS, _PULL_BYTES = 4, 4096


def ring_stages(tiles_per_sm: float) -> int:
    """Return the number of stages with which a layer of so many tiles per SM is fastest."""
    return FEWEST_STAGES if tiles_per_sm >= LONG_LAYER_TILES else MOST_STAGES


def owner_words(owner: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the words that name a slot or a token of each row's owner; `NO_ROW` where nobody owns the row."""
    return np.where(owner < 0, NO_ROW, owner << OWNER_SHIFT | number).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class MoeBuild(HopperBuild):
    """One compile-time variant of the kernel.

    `fp8`: e4m3 operands with scales instead of bf16. `combine`: what a result row consists of; ``none`` stores nothing, the time that
    stores are judged against; ``fp8`` is e4m3 with one scale for the whole layer. `dispatch`: the kernel pulls its rows from their owners;
    else they are there already. `stamps`: every task leaves its times. `stages`: of operands that the kernel asks for ahead, 4 or 5
    (`ring_stages`).
    """

    source: ClassVar[str] = "moe.cu"
    symbol: ClassVar[str] = "xstage_moe"
    fp8: bool = False
    combine: Combine = "bf16"
    dispatch: bool = False
    stamps: bool = False
    stages: int = MOST_STAGES

    def __post_init__(self) -> None:
        if not FEWEST_STAGES <= self.stages <= MOST_STAGES:
            raise UsageError(f"a ring of {self.stages} stages", f"{FEWEST_STAGES} to {MOST_STAGES}")

    @property
    def threads(self) -> int:
        """Threads of a CTA: the two warpgroups that multiply, and one that loads, pulls and publishes."""
        return 384

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        pulls = _PULL_BUFFERS * _PULL_BYTES if self.dispatch else 0
        scales = 2 * 8 * _SCALES_BYTES if self.fp8 else 0
        barriers = 8 * (2 * self.stages + _PULL_BUFFERS) + 16  # and counts of tasks stored and scouted
        return self.stages * _STAGE_BYTES + 8 * _STAGED_BYTES + pulls + scales + barriers

    def switches(self) -> dict[str, int]:
        """What it is compiled for, and the sizes of what host and kernel share."""
        of = {
            "STAGES": self.stages, "FP8": self.fp8, "COMBINE": COMBINES.index(self.combine), "DISPATCH": self.dispatch,
            "STAMPS": self.stamps,
        }  # fmt: skip
        sizes = {"PLAN": PLAN.itemsize, "STAMP": STAMP.itemsize, "REPORT": REPORT.itemsize, "SHARED": self.shared_bytes}
        return {**of, **{f"{name}_BYTES": size for name, size in sizes.items()}}
