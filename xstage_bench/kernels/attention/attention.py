"""What ``cuda/attention.cu`` is compiled for and the plan that one launch reads; pure numpy.

The dtypes mirror the structs of ``cuda/attention_plan.cuh``; a test compares the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from xstage_bench.errors import UsageError
from xstage_bench.kernels.gpu import HopperBuild
from xstage_bench.machine.gpus import Default

MAX_OWNERS = 16
PLAN = np.dtype(
    [(n, "<u8", 16) for n in ("q", "k", "v")]
    + [("out_map", "<u8", (MAX_OWNERS, 16)), ("out", "<u8", MAX_OWNERS), ("flags", "<u8", MAX_OWNERS)]
    + [(n, "<u8") for n in ("order", "waits", "stamps", "report", "timeout_ns")]
    + [
        (n, "<u4")
        for n in ("tiles", "seq", "rows_per_owner", "owners", "heads_total", "head_first", "queries_per_key", "epoch", "wait_count")
    ]
    + [("scale_log2", "<f4"), ("pad", "<u4", 12)]
)
WAIT = np.dtype([("words", "<u8"), ("count", "<u4"), ("per_launch", "<u4")])
STAMP = np.dtype([("begin_ns", "<u8"), ("computed_ns", "<u8"), ("stored_ns", "<u8"), ("smid", "<u4"), ("tile", "<u4")])
REPORT = np.dtype([("arrived_ns", "<u8"), ("timed_out", "<u4"), ("pad", "<u4")])

SHARED_LIMIT_BYTES = 227 * 1024
TILE_ROWS_PER_GROUP = 64

Store = Literal["st.v4", "bulk"]
Flags = Literal["none", "end", "shard", "tile"]
STORES: tuple[Store, ...] = ("st.v4", "bulk")
FLAGS: tuple[Flags, ...] = ("none", "end", "shard", "tile")
#: Names what is timed without sending.
ALONE = "alone"


def alone_of(store: str) -> str:
    """Return the name of attention alone by the build of this way to store."""
    return ALONE if store == STORES[0] else f"{ALONE} {store}"


@dataclass(frozen=True, slots=True)
class AttentionBuild(HopperBuild):
    """One compile-time variant of the kernel.

    `head_dim`: 64 or 128. `keys`: rows of K and V that are multiplied at a time. `consumers`: warpgroups that multiply; a tile has 64 rows
    for each. `stages`: K and V blocks under way, each. `store`: 16-byte stores, or tensor stores from shared memory. `flags`: none;
    ``end``, one per CTA and owner; ``shard``, a count of tiles per owner; ``tile``, a word per tile. `stamps`: each tile leaves its times.
    """

    source: ClassVar[str] = "attention.cu"
    symbol: ClassVar[str] = "xstage_attention"
    head_dim: int = 128
    keys: int = 160
    consumers: int = 2
    stages: int = 2
    store: Store = "st.v4"
    flags: Flags = "none"
    stamps: bool = False

    @property
    def tile_rows(self) -> int:
        """Rows of one tile."""
        return TILE_ROWS_PER_GROUP * self.consumers

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers and one warpgroup that loads and publishes."""
        return 128 * (self.consumers + 1)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA; staged rows lie over the queries where they would not fit beside."""
        beside = 0 if self.staged_over_queries else self._tile_bytes
        return self._input_bytes + beside + 8 * (2 + 4 * self.stages) + 4 * 4 * self.consumers

    @property
    def staged_over_queries(self) -> bool:
        """Whether a tile's rows wait for their stores where its queries were."""
        return self._input_bytes + self._tile_bytes + 1024 > SHARED_LIMIT_BYTES

    @property
    def _tile_bytes(self) -> int:
        return self.tile_rows * self.head_dim * 2

    @property
    def _input_bytes(self) -> int:
        return self._tile_bytes + 2 * self.stages * self.keys * self.head_dim * 2

    def switches(self) -> dict[str, int]:
        """What it is compiled for."""
        numbers = {"HEAD_DIM": self.head_dim, "KEYS": self.keys, "CONSUMERS": self.consumers, "STAGES": self.stages}
        return {**numbers, "STORE": STORES.index(self.store), "FLAGS": FLAGS.index(self.flags), "STAMPS": self.stamps}


#: Builds to choose from, by head dimension: keys at a time, consumers, and TFLOP/s of one H200 on 16 to 33 thousand rows, 2026-11-29.
_RATES: dict[int, tuple[tuple[int, int, float], ...]] = {
    128: ((176, 2, 665.0), (160, 2, 651.0), (128, 2, 645.0)),
    64: ((128, 3, 493.0), (192, 2, 489.0)),
}


TUNED: tuple[Default, ...] = tuple(
    Default(
        name=f"attention, {keys} keys x {consumers} consumers, head dimension {head_dim},", value=rate, unit="TFLOP/s",
        source="one H200 on 16 to 33 thousand rows, 2026-11-29: by these the build of a case is chosen",
    )
    for head_dim, builds in _RATES.items()
    for keys, consumers, rate in builds
)  # fmt: skip


def builds_of(head_dim: int, store: Store) -> dict[AttentionBuild, float]:
    """Return the builds of a head dimension and their TFLOP/s on a long sequence; `UsageError`: the kernel has no such head dimension.

    Bulk stores need the staged rows to lie beside the queries: over them, the next queries would wait for the link.
    """
    if head_dim not in _RATES:
        raise UsageError(f"head dimension {head_dim}", f"the attention kernel has {' and '.join(map(str, sorted(_RATES)))}")
    found = {AttentionBuild(head_dim, keys, consumers, store=store): rate for keys, consumers, rate in _RATES[head_dim]}
    return {build: rate for build, rate in found.items() if store != "bulk" or not build.staged_over_queries}


def best_build(head_dim: int, store: Store, seq: int, heads: int, sms: int) -> AttentionBuild:
    """Return the build that needs the least time by its rate, its whole waves of tiles and its whole blocks of keys."""
    rates = builds_of(head_dim, store)

    def cost(build: AttentionBuild) -> float:
        waves = -(-heads * -(-seq // build.tile_rows) // sms)
        return waves * build.tile_rows * -(-seq // build.keys) * build.keys / rates[build]

    return min(rates, key=cost)
