"""Variants timed against each other: all ranks start together, in a fresh random order in every repetition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.gpu import pinned
from xstage_bench.errors import XStageError
from xstage_bench.kernels.attention.gpu import AttentionGpu
from xstage_bench.kernels.attention.variants import AttentionVariant
from xstage_bench.kernels.spread import in_turn

#: Rounds there and back begin after so long: of a GPU that comes from idleness, power does not limit the clocks yet.
WARM_UP_S = 0.3


class Gate:
    """Lets all ranks go at once, after the host has queued everything: no launch is part of what is timed."""

    def __init__(self, gpus: Sequence[AttentionGpu]) -> None:
        self._gpus = list(gpus)
        self._go = pinned(1, np.uint32)
        self._go[0] = 0
        mail = np.array([gpu.zeroed(128) for gpu in self._gpus], dtype=np.uint64)
        self._tables = [gpu.uploaded(mail) for gpu in self._gpus]
        self._turn = 0

    def __len__(self) -> int:
        return len(self._gpus)

    def time_us(self, variant: AttentionVariant) -> NDArray[np.float64]:
        """Queue a variant behind the gate, open it, and return the time of each rank.

        `XStageError`: a wait inside a kernel ended by its time-out.
        """
        self._turn += 1
        for rank, gpu in enumerate(self._gpus):
            gpu.meet(self._tables[rank], rank, len(self._gpus), self._go.ctypes.data, self._turn)
        begin = [gpu.event() for gpu in self._gpus]
        variant.queue()
        end = [gpu.event() for gpu in self._gpus]
        self._go[0] = self._turn
        for gpu, event in zip(self._gpus, end, strict=True):
            gpu.use()
            event.synchronize()
        if variant.late() or any(gpu.was_late() for gpu in self._gpus):
            raise XStageError(f"variant '{variant.name}': a rank waited for 2 s in vain", "run compute-sanitizer on a small shape")
        return np.array([gpu.elapsed_ms(a, b) * 1e3 for gpu, a, b in zip(self._gpus, begin, end, strict=True)])


def interleave(
    gate: Gate, variants: Sequence[AttentionVariant], rng: np.random.Generator, *, seconds: float, rounds: tuple[int, int],
    back: bool = False,
) -> dict[str, NDArray[np.float64]]:  # fmt: skip
    """Time all variants in each of several rounds, the fewest and the most, about so many seconds in all.

    `back`: a round is executed a second time in the reverse order, A F F A: in the means of both times a clock that drifts evenly over the
    round has moved every variant alike. Returns microseconds, shape (rounds, ranks), by the variants' names.
    """
    # What is connected or allocated on first use is not timed; what this takes says how many rounds there is time for.
    warmed_s, once_s = 0.0, 0.0
    while not once_s or (back and warmed_s < WARM_UP_S):
        once_s = sum(float(gate.time_us(variant).max()) for variant in variants) / 1e6
        warmed_s += once_s
    count = int(min(max(seconds / ((2 if back else 1) * once_s), rounds[0]), rounds[1]))
    times: dict[str, list[NDArray[np.float64]]] = {variant.name: [] for variant in variants}
    for _, variant in in_turn(variants, count, rng, back=back):
        times[variant.name].append(gate.time_us(variant))
    return {name: np.reshape(us, (count, -1, len(gate))).mean(axis=1) for name, us in times.items()}


def slowest(times: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Return the time of the slowest rank in each round: the work is done when all ranks are."""
    return {name: rows.max(axis=1) for name, rows in times.items()}
