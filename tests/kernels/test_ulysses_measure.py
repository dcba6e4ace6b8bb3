"""How variants are timed against each other: rounds there and back, where a drifting clock cancels; a gate without GPUs keeps the time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from xstage_bench.kernels.attention.measure import WARM_UP_S, interleave, slowest
from xstage_bench.kernels.attention.variants import AttentionVariant


@dataclass
class DriftingGate:
    """Two ranks whose clocks fall evenly from launch to launch, the second one's faster."""

    true_us: dict[str, float]
    per_launch: float = 0.01
    launched: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return 2

    def time_us(self, variant: AttentionVariant) -> np.ndarray:
        self.launched.append(variant.name)
        variant.queue()
        return self.true_us[variant.name] * (1 + self.per_launch * len(self.launched) * np.array([1.0, 2.0]))


def of(names: str) -> list[AttentionVariant]:
    return [AttentionVariant(name, lambda: None) for name in names]


def test_an_even_drift_cancels_there_and_back_and_not_without() -> None:
    gate = DriftingGate({"A": 100.0, "F": 100.0, "G": 100.0})
    times = slowest(interleave(gate, of("AFG"), np.random.default_rng(1), seconds=1.0, rounds=(5, 7), back=True))  # type: ignore[arg-type]
    assert times["F"] / times["A"] == pytest.approx(np.ones(7), abs=1e-12)
    assert times["G"] / times["A"] == pytest.approx(np.ones(7), abs=1e-12)
    rounds = np.array(gate.launched[-42:]).reshape(7, 6)
    assert (rounds == rounds[:, ::-1]).all()
    assert len({tuple(r) for r in rounds.tolist()}) > 1, "the order is drawn anew"
    times = slowest(interleave(gate, of("AF"), np.random.default_rng(1), seconds=1.0, rounds=(7, 7)))  # type: ignore[arg-type]
    assert np.abs(times["F"] / times["A"] - 1).min() > 1e-3


def test_rounds_there_and_back_begin_warm() -> None:
    gate = DriftingGate({"A": 1e4, "F": 1e4}, per_launch=0.0)
    interleave(gate, of("AF"), np.random.default_rng(1), seconds=1e-6, rounds=(3, 9), back=True)  # type: ignore[arg-type]
    warming = len(gate.launched) - 3 * 4
    assert warming * 1e-2 == pytest.approx(WARM_UP_S)
