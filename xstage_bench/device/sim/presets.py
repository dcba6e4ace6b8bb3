"""Simulated nodes: every parameter of the queueing model, its unit and where its value comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

from xstage_bench.device.sim.port import Port

#: Pairs of neighbouring smids (pair p is smids 2p and 2p+1) of each group, split into subgroups.
Groups = tuple[tuple[tuple[int, ...], ...], ...]

#: Annealed on the recorded spread over producers (tests/claims/calibrate_simulator.py, docs/simulator.md). It belongs to one die, and the
#: recorded subsets may not tell two labellings apart.
H200_GROUPS: Groups = (
    ((1, 43, 55), (38, 44, 65), (12, 34, 35, 48)),
    ((5, 28, 58), (8, 21, 41)),
    ((14, 47), (37, 59, 60), (4, 16, 33)),
    ((29, 30, 49), (15, 32, 64), (17, 39)),
    ((0, 23, 31), (6, 51, 61), (11, 40)),
    ((3, 13, 26), (2, 52, 63), (53, 57, 62)),
    ((22, 25, 50), (18, 20), (27, 54, 56)),
    ((7, 10, 24, 45), (19, 42), (9, 36, 46)),
)


@dataclass(frozen=True, slots=True)
class Fence:
    """What a system-scope fence costs, in cycles of the SM clock.

    Parameters
    ----------
    empty, empty_spread : float
        With nothing outstanding: the least, and the width above it.
    remote, local : float
        Round trip of the last store.
    per_warp_doubling : float
        Added for each doubling of the storing warps.
    local_contention : float
        Added to `local` when every SM stores.
    """

    empty: float = 640.0
    empty_spread: float = 510.0
    remote: float = 1650.0
    local: float = 1150.0
    per_warp_doubling: float = 400.0
    local_contention: float = 650.0


@dataclass(frozen=True, slots=True)
class Noise:
    """How repetitions, processes and producers differ. Fractions are standard deviations of the stalled part of a burst.

    Parameters
    ----------
    repetition, producer : float
        Per execution, and per producer and burst.
    process_link, process_capacity : float
        Per process: on the link's rate and on the capacity.
    port_cycles : float
        Standard deviation of a burst's issue cost when several warps share the port; one warp alone is exact.
    spike_chance, spike_cycles : float
        Per producer and burst: a rare one-sided delay, exponential with this mean.
    """

    repetition: float = 0.004
    producer: float = 0.03
    process_link: float = 0.0015
    process_capacity: float = 0.003
    port_cycles: float = 2.0
    spike_chance: float = 2e-5
    spike_cycles: float = 3000.0


@dataclass(frozen=True, slots=True)
class Preset:
    """A simulated node.

    Parameters
    ----------
    name, gpu, provenance : str
    gpus : int
        All ordered pairs of them can store to each other.
    sm_count : int
    absent_smids : tuple of int
        smids that no SM has, below the largest: smids have holes where SMs are taken away (MIG, a virtual GPU).
    sm_clock_mhz, timer_tick_ns : float
    line_rate_gb_per_s : float
        What the links' signalling allows, per direction.
    link_gb_per_s : float
        What all producers together drain at, 10^9 bytes per second.
    host_gb_per_s, host_buffer_bytes : float
        The same to pinned host memory over PCIe, and the shared buffer before it (below): 52 GB/s, and what 8 to 132 SMs have outstanding
        beside their own 18 kB each, 1.0 to 1.6 MB (results/h200-host/profile).
    egress_gb_per_s, ingress_gb_per_s : float
        In a scene: what one GPU's port sends to, and receives from, all others together.
    link_buffer_bytes : float
        What the shared buffer before the link holds: until it is full, SMs drain at their own rate.
    sm_bytes_per_cycle : float
        The most that one SM passes on to the link.
    capacity_alone_bytes, capacity_both_bytes : float
        Bytes that an SM may have outstanding when its neighbour in the pair is idle, and when both produce: part of the buffer
        is the pair's.
    local_sm_bytes_per_cycle, local_group_bytes_per_cycle, local_capacity_bytes, local_credit : float
        Stores to the GPU's own memory: no link is shared, but each group of SMs has a rate of its own.
    latency, latency_per_warp, credit : float
        Cycles from a burst's start until its bytes drain, what each warp adds, and the round trip of a credit.
    turnaround, gap_overhead : float
        Cycles of the instrument between two bursts: the least, and what an asked gap is longer by.
    warp_drift, warp_drift_most : float
        How far the warps of a producer run apart in timed schedules: cycles per late burst over the square root of the burst's cycles, and
        the most as a fraction of the burst. 0 when the instrument joins the warps of a producer between bursts.
    unawaited_bytes, closing_cycles : float
        What the closing stamp of a burst means: the bytes of each warp's last stores that may still wait for the SM when it is read (0: it
        waits for all of them), and what reading it costs more. An instrument whose compiler lets go of the last registers too early has
        the first; one that fences before its stamp the second.
    groups : Groups
        The tree of arbiters.
    """

    name: str
    gpu: str
    provenance: str
    gpus: int = 2
    sm_count: int = 132
    absent_smids: tuple[int, ...] = ()
    sm_clock_mhz: float = 1980.0
    timer_tick_ns: float = 32.0
    line_rate_gb_per_s: float = 478.1
    link_gb_per_s: float = 371.3
    host_gb_per_s: float = 52.0
    host_buffer_bytes: float = 1.3e6
    egress_gb_per_s: float = 371.3
    ingress_gb_per_s: float = 371.3
    link_buffer_bytes: float = 247500.0
    sm_bytes_per_cycle: float = 25.8
    capacity_alone_bytes: float = 19950.0
    capacity_both_bytes: float = 17530.0
    local_sm_bytes_per_cycle: float = 31.9
    local_group_bytes_per_cycle: float = 293.6
    local_capacity_bytes: float = 23550.0
    local_credit: float = 297.0
    latency: float = 81.9
    latency_per_warp: float = 2.92
    credit: float = 426.4
    turnaround: float = 242.0
    gap_overhead: float = 145.0
    warp_drift: float = 3.5
    warp_drift_most: float = 0.9
    unawaited_bytes: float = 0.0
    closing_cycles: float = 0.0
    groups: Groups = H200_GROUPS
    port: Port = field(default_factory=Port)
    fence: Fence = field(default_factory=Fence)
    noise: Noise = field(default_factory=Noise)

    @property
    def smids(self) -> tuple[int, ...]:
        """Every smid, ascending."""
        have = (s for s in range(self.sm_count + len(self.absent_smids)) if s not in self.absent_smids)
        return tuple(have)[: self.sm_count]


PRESETS: dict[str, Preset] = {
    p.name: p
    for p in (
        Preset(
            name="h200-nv18-x2",
            gpu="NVIDIA H200 (simulated)",
            provenance="calibrated on results/reference/h200-clean: 2 x H200, NV18, 132 SMs at 1980 MHz, one recorded die and hour",
        ),
        Preset(
            name="h200-nvswitch-x8",
            gpu="NVIDIA H200 (simulated)",
            provenance="extrapolated from h200-nv18-x2, never measured: 8 GPUs behind NVSwitch, every pair like the recorded one",
            gpus=8,
        ),
    )
}
