"""Tiles of SMs that all begin together, in closed form: what a scheduler or an autotuner asks thousands of times.

All producers compute a tile, store it, and go on with the next one. Nothing lets them drift apart, so every burst meets all the others:
the most that these stores can cost. The predictor of tasks lets them drift, and says the least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from xstage_bench.errors import UsageError
from xstage_bench.model.document import Model
from xstage_bench.model.sms import sms_of
from xstage_bench.model.stage import Stage, stage_at

_SETTLED = 1e-6  # of a tile's bytes: the backlog of two waves is then the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """What one configuration of a kernel does: the words in which an autotuner's function describes it.

    Parameters
    ----------
    tile_ns : float
        Compute time of one tile when nothing is stored.
    tiles : int
        Of the whole kernel, shared among the SMs.
    bytes : int
        That a tile stores to the peer.
    sms : int, optional
        That work; default: all of the model's GPU.
    warps : int
        That store in each.
    """

    tile_ns: float
    tiles: int
    bytes: int
    sms: int | None = None
    warps: int = 4

    def __post_init__(self) -> None:
        if not self.tile_ns >= 0 or min(self.tiles, self.warps, 1 if self.sms is None else self.sms) < 1 or self.bytes < 0:
            raise UsageError(
                "tiles, SMs and warps must be at least 1, bytes and times not negative", "Tiles(tile_ns=..., tiles=..., bytes=...)"
            )


def lost_cycles(stage: Stage, burst_bytes: float, waves: int, tile_cycles: float) -> float:
    """Return what the stores of equal tiles add to their compute: T0 and stall of each burst, then what drains after the last.

    Parameters
    ----------
    stage : Stage
    burst_bytes : float
        Of one tile of one producer.
    waves : int
        Tiles of a producer.
    tile_cycles : float
        Compute time of a tile.
    """
    backlog, lost = 0.0, 0.0
    for wave in range(waves):
        found = max(0.0, backlog - stage.bytes_per_cycle * tile_cycles)
        issue = stage.issue_cycles(burst_bytes, found)
        after = stage.backlog_after(found, burst_bytes, issue)
        lost += issue
        if wave and abs(after - backlog) <= _SETTLED * burst_bytes:  # every further wave is like this one
            lost += issue * (waves - wave - 1)
            backlog = after
            break
        backlog = after
    return lost + backlog / stage.bytes_per_cycle


def perf_model(
    model: Model, tiles: Callable[..., Tiles], *, pair: str = "0>1", flavour: str = "st.v4", sm_clock_mhz: float | None = None
) -> Callable[..., float]:
    """Return a function that estimates a configuration's time: what Triton's ``prune_configs_by={"perf_model": ...}`` takes.

    Parameters
    ----------
    model : Model
    tiles : callable
        Gets what Triton gives a ``perf_model``: the kernel's arguments and the configuration's, by name. Returns `Tiles`.
    pair, flavour : str
    sm_clock_mhz : float, optional
        Default: the model's.

    Returns
    -------
    callable
        Estimated time in ms, as Triton's own; below 1 ms a call.

    Raises
    ------
    UsageError
        The model has no such pair and flavour.
    """
    most = sms_of(model, pair)

    @lru_cache(maxsize=256)
    def stage(producers: int, warps: int) -> Stage:
        found = stage_at(model, producers, warps, pair=pair, flavour=flavour)
        return found if sm_clock_mhz is None else found.at_clock(sm_clock_mhz)

    stage(most, 4)  # a model that lacks the pair is refused here, not in the middle of a search

    def estimate(*given: Any, **named: Any) -> float:
        what = tiles(*given, **named)
        producers = min(what.sms or most, most, what.tiles)
        waves = -(-what.tiles // producers)
        behind = stage(producers, what.warps)
        tile_cycles = what.tile_ns * behind.sm_clock_mhz * 1e-3
        return (waves * tile_cycles + lost_cycles(behind, what.bytes, waves, tile_cycles)) / behind.sm_clock_mhz * 1e-3

    return estimate
