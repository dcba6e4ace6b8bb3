"""The law of loads from another memory: latency, rate and what is in flight. A warp that waits for its loads pays the latency every round.

A warp that keeps `depth` loads of 512 bytes in flight makes ``loads / depth`` rounds, each at least the latency L. An SM takes at most r,
all SMs together at most R. So a pull takes ``L + max((rounds - 1) L, b / r, K b / R)`` with b bytes per SM: latency and gap of LogGP.
By Little's law r L is what one SM can have in flight, and R L what all can: more loads in flight gain nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from xstage_bench.model.estimate import Estimate

LOAD_BYTES = 512


@dataclass(frozen=True, slots=True)
class PullLaw:
    """Three fitted numbers of a pair.

    Parameters
    ----------
    latency_ns : Estimate
        Of one load of a warp, nothing else under way.
    sm_gb_per_s, gb_per_s : Estimate
        What one SM, and what all SMs together take at most.
    """

    latency_ns: Estimate
    sm_gb_per_s: Estimate
    gb_per_s: Estimate

    def time_ns(self, producers: int, warps: int, depth: int, loads: int) -> float | None:
        """Return how long a pull takes from the first load to the last arrival; None where a number is missing."""
        latency, of_sm, of_all = self.latency_ns.value, self.sm_gb_per_s.value, self.gb_per_s.value
        if latency is None or of_sm is None or of_all is None:
            return None
        each = warps * loads * LOAD_BYTES
        return latency + max((loads / depth - 1) * latency, each / of_sm, producers * each / of_all)

    def in_flight_bytes(self) -> tuple[float | None, float | None]:
        """Return what one SM, and what all SMs have in flight at their highest rate, by Little's law."""
        latency, of_sm, of_all = self.latency_ns.value, self.sm_gb_per_s.value, self.gb_per_s.value
        if latency is None:
            return None, None
        return None if of_sm is None else latency * of_sm, None if of_all is None else latency * of_all
