"""A queueing model of the hardware, richer than the fitted three-parameter law, always labelled simulated (docs/simulator.md)."""

from xstage_bench.device.sim.burst_gap import BurstGapTruth
from xstage_bench.device.sim.device import SimDevice
from xstage_bench.device.sim.faults import Faults
from xstage_bench.device.sim.presets import PRESETS, Preset

__all__ = ["PRESETS", "BurstGapTruth", "Faults", "Preset", "SimDevice"]
