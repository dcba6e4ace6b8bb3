"""All that the variants of one problem share: GPUs that reach each other, inputs, and where every row of every rank's heads shall go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from xstage_bench.kernels.attention.attention import AttentionBuild
from xstage_bench.kernels.attention.check import Verdict
from xstage_bench.kernels.attention.gpu import AttentionGpu
from xstage_bench.kernels.attention.plans import plan_of
from xstage_bench.kernels.attention.problem import BF16_BYTES, Placing
from xstage_bench.kernels.attention.tile_order import tiles_of

#: Rows before and after every output that nobody may touch.
GUARD_ROWS = 4


class Rig:
    """Inputs, which differ between ranks, and outputs of one problem on its GPUs; `close` gives the memory back.

    The GPUs, by device index, outlive the rig, so that kernels are loaded once.
    """

    def __init__(self, gpus: dict[int, AttentionGpu], placing: Placing, seed: int) -> None:
        self.placing, self.problem, self._gpus = placing, placing.problem, gpus
        self._taken: list[tuple[AttentionGpu, int]] = []
        p = self.problem
        self.gpus = [gpus[d] for d in placing.devices]
        rows = {"q": p.local_heads, "k": p.local_kv_heads, "v": p.local_kv_heads}
        self.inputs = [
            {
                name: self._keep(gpu, gpu.normal(p.seq * heads * p.head_dim, seed + 101 * rank + i))
                for i, (name, heads) in enumerate(rows.items())
            }
            for rank, gpu in enumerate(self.gpus)
        ]
        self.local = [self.take(gpu, p.seq * p.row_bytes) for gpu in self.gpus]
        self._guard = GUARD_ROWS * p.ranks * p.row_bytes
        self._regions: dict[tuple[int, int], tuple[AttentionGpu, int, int]] = {}
        for key, device in placing.regions().items():
            size = p.rows_of(key[1]) * p.ranks * p.row_bytes + 2 * self._guard
            self._regions[key] = (gpus[device], self.take(gpus[device], size), size)
        self._orders: dict[tuple[int, str, int], tuple[int, NDArray[np.uint32]]] = {}

    def take(self, gpu: AttentionGpu, size: int) -> int:
        """Return new memory that lives as long as this rig."""
        return self._keep(gpu, gpu.zeroed(size))

    def upload(self, gpu: AttentionGpu, array: NDArray[np.void]) -> tuple[int, int]:
        """Address and number of entries of a table that lives as long as this rig."""
        return self._keep(gpu, gpu.uploaded(array)), array.size

    def owners(self, rank: int) -> dict[int, int]:
        """Address of each owner's rows, as one rank sends them; owners without rows are left out."""
        return {
            owner: self._regions[self.placing.region(rank, owner)][1] + self._guard
            for owner in range(self.problem.ranks)
            if self.problem.rows_of(owner)
        }

    def order(self, rank: int, name: str, build: AttentionBuild) -> tuple[int, NDArray[np.uint32]]:
        """Return a tile order: its address on the GPU, and its words."""
        key = (rank, name, build.tile_rows)
        if key not in self._orders:
            p = self.problem
            words = tiles_of(name, p.local_heads, p.seq, build.tile_rows, p.ranks, rank)
            self._orders[key] = (self._keep(self.gpus[rank], self.gpus[rank].uploaded(words)), words)
        return self._orders[key]

    def plan_local(self, rank: int, build: AttentionBuild, order: str) -> NDArray[np.void]:
        """Return the plan of attention alone: everything stays with this rank, without the other ranks' heads between."""
        address, words = self.order(rank, order, build)
        return plan_of(self.problem, build, self.inputs[rank], (address, words.size), {0: self.local[rank]})

    def plan_owners(self, rank: int, build: AttentionBuild, order: str, addresses: dict[int, int] | None = None) -> NDArray[np.void]:
        """Return the plan that sends every row to its owner, or to these addresses."""
        address, words = self.order(rank, order, build)
        out = self.owners(rank) if addresses is None else addresses
        return plan_of(self.problem, build, self.inputs[rank], (address, words.size), out, rank)

    def verify(self, run: Callable[[], None]) -> dict[str, object]:
        """Poison every owner's rows, execute, and compare what arrived with the reference.

        ``ranks``, a `Verdict` of each; ``unwritten``, poison left where a rank computed; ``stray``, poison gone elsewhere; ``late``,
        whether a kernel waited in vain.
        """
        p = self.problem
        for gpu, address, size in self._regions.values():
            gpu.poison(address, size)
        run()
        for gpu in self._gpus.values():
            gpu.synchronize()
        verdicts: list[Verdict] = [gpu.check(p, rank, self.inputs[rank], self.owners(rank)) for rank, gpu in enumerate(self.gpus)]
        left = {key: gpu.unwritten(address, size // BF16_BYTES) for key, (gpu, address, size) in self._regions.items()}
        spared = {
            key: (2 * self._guard + p.rows_of(key[1]) * p.row_bytes * (p.ranks - 1 if self.placing.emulated else 0)) // BF16_BYTES
            for key in self._regions
        }
        off = [left[key] - spared[key] for key in self._regions]
        late = any(gpu.was_late() for gpu in self.gpus)
        return {"ranks": verdicts, "unwritten": sum(max(n, 0) for n in off), "stray": sum(max(-n, 0) for n in off), "late": late}

    def close(self) -> None:
        """Free everything that was taken."""
        for gpu, address in self._taken:
            gpu.free(address)
        self._taken.clear()

    def _keep(self, gpu: AttentionGpu, address: int) -> int:
        self._taken.append((gpu, address))
        return address
