"""One attention of a Ulysses group: which rank computes which heads, which rank owns which rows, and where each rank is.

After the first All-to-All every rank has all rows of some heads; after the last one, all heads of some rows. Rank r computes heads
``[r * h, (r + 1) * h)`` and owns rows ``[r * n, (r + 1) * n)`` with n = ceil(rows / ranks); the last owner may have fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xstage_bench.errors import UsageError
from xstage_bench.kernels.attention.attention import MAX_OWNERS

BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """Heads, rows and ranks; the heads are those of the whole group, and ranks beyond the number of key heads share one.

    `UsageError`: heads that cannot be dealt to the ranks, or more ranks than the kernel addresses.
    """

    heads: int
    kv_heads: int
    head_dim: int
    seq: int
    ranks: int
    name: str = ""

    def __post_init__(self) -> None:
        if min(self.heads, self.kv_heads, self.seq, self.ranks) < 1:
            raise UsageError("heads, rows and ranks must be at least 1", "for example --heads 40 --seq 32760 --sp 2")
        if self.ranks > MAX_OWNERS:
            raise UsageError(f"{self.ranks} ranks", f"the kernel addresses at most {MAX_OWNERS}")
        if self.heads % self.ranks:
            fits = [r for r in range(1, MAX_OWNERS + 1) if self.heads % r == 0]
            raise UsageError(f"{self.heads} heads cannot be dealt to {self.ranks} ranks", f"use --sp {', '.join(map(str, fits))}")
        if self.heads % self.kv_heads or (self.kv_heads % self.ranks and self.ranks % self.kv_heads):
            raise UsageError(f"{self.kv_heads} key heads for {self.heads} heads on {self.ranks} ranks", "they must divide each other")

    @property
    def case(self) -> dict[str, Any]:
        """What tells the rows of a document apart."""
        return {
            "shape": self.name, "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim, "seq": self.seq,
            "sp": self.ranks,
        }  # fmt: skip

    @property
    def local_heads(self) -> int:
        """Query heads that one rank computes."""
        return self.heads // self.ranks

    @property
    def local_kv_heads(self) -> int:
        """Key heads that one rank has."""
        return max(1, self.kv_heads // self.ranks)

    @property
    def rows_per_owner(self) -> int:
        """Rows that an owner has, the last ones excepted."""
        return -(-self.seq // self.ranks)

    def rows_of(self, owner: int) -> int:
        """Rows of one owner; none where the ranks before have all."""
        return max(0, min(self.rows_per_owner, self.seq - owner * self.rows_per_owner))

    @property
    def flops(self) -> float:
        """Floating-point operations of one rank."""
        return 4.0 * self.seq * self.seq * self.local_heads * self.head_dim

    @property
    def row_bytes(self) -> int:
        """Bytes of one output row of one rank's heads."""
        return self.local_heads * self.head_dim * BF16_BYTES

    def remote_bytes(self, rank: int) -> int:
        """Bytes that one rank sends."""
        return (self.seq - self.rows_of(rank)) * self.row_bytes


@dataclass(frozen=True, slots=True)
class Placing:
    """Which GPU each computing rank has, and where each owner's rows lie.

    `devices` are the GPUs of ranks 0, 1, ...: all of them, or the first two of an emulated group. Then every other rank's rows lie on the
    peer GPU, apart for each sender: what a sender does is what it would do in a group of that many GPUs, what a receiver does is not.
    """

    problem: Problem
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.devices) != self.problem.ranks and (len(self.devices) != 2 or self.problem.ranks < 2):
            raise UsageError(
                f"{self.problem.ranks} ranks on {len(self.devices)} GPUs", "as many GPUs as ranks, or two for an emulated group"
            )

    @property
    def emulated(self) -> bool:
        """Whether some of the ranks do not exist."""
        return len(self.devices) != self.problem.ranks

    @property
    def sources(self) -> range:
        """The ranks that compute."""
        return range(len(self.devices))

    def device_of(self, source: int, owner: int) -> int:
        """Return the GPU on which `owner` receives from `source`."""
        if not self.emulated:
            return self.devices[owner]
        return self.devices[source] if owner == source else self.devices[1 - source]

    def region(self, source: int, owner: int) -> tuple[int, int]:
        """Return the key of the memory for these rows: shared by all senders, or one for each where the group is emulated."""
        return (source if self.emulated else -1, owner)

    def regions(self) -> dict[tuple[int, int], int]:
        """All regions with rows, and the GPU of each."""
        return {self.region(s, o): self.device_of(s, o) for s in self.sources for o in range(self.problem.ranks) if self.problem.rows_of(o)}
