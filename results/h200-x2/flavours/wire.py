"""Bytes on the wire against bytes of payload, from the NVLink counters: what headers, flags and partly filled packets cost a layout."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xstage_bench.errors import PairError
from xstage_bench.machine.nvml import ask_field, list_gpus, open_nvml
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Device, Execution

#: NVML's numbered counters of all links of a GPU; those of the throughput family count KiB.
COUNTERS: dict[str, tuple[int, int]] = {
    "data_sent": (138, 1024),
    "raw_sent": (140, 1024),
    "bytes_sent": (202, 1),
    "packets_sent": (201, 1),
}
ALL_LINKS = 0xFFFFFFFF
SETTLE_S = 0.03  # the counters follow the link with some delay
SMALL, LARGE = 2 << 20, 4 << 20  # per producer; the difference of the two is free of verification's own traffic


@dataclass(frozen=True, slots=True)
class Wire:
    """What one flavour and layout puts on the link per byte of payload; null where the driver does not say, with the reason.

    Parameters
    ----------
    flavour, layout : str
    payload_bytes : int
        Payload of the difference between the two sizes, in all executions of one repetition.
    per_payload : dict of str to list of float
        Counter to its growth per byte of payload, one value per repetition.
    reasons : dict of str to str
        Counters that cannot be read.
    """

    flavour: str
    layout: str
    payload_bytes: int
    per_payload: dict[str, list[float]]
    reasons: dict[str, str]


def read_counters(nvml: Any, handle: Any) -> tuple[dict[str, int], dict[str, str]]:
    """Read all counters of one GPU in bytes (packets in packets); those that cannot be read with their reason."""
    values, reasons = {}, {}
    for name, (field, unit) in COUNTERS.items():
        value, reason = ask_field(nvml, handle, field, ALL_LINKS)
        if value is None:
            reasons[name] = reason or "no answer"
        else:
            values[name] = int(value) * unit
    return values, reasons


def measure_wire(device: Device, source: int, destination: int, cases: Sequence[tuple[str, str]], repetitions: int = 3) -> list[Wire]:
    """Store known payloads and read the counters of the source around them.

    Parameters
    ----------
    device : Device
        Real GPUs.
    source, destination : int
    cases : sequence of (flavour, layout)
    repetitions : int
    """
    gpu = device.node().gpus[source]
    with open_nvml() as nvml:
        handle = next((g.handle for g in list_gpus(nvml) if g.uuid == gpu.uuid), None)
        if handle is None:
            raise PairError(f"NVML does not know GPU {source}", "run 'xstage doctor'")
        return [_case(nvml, handle, device, gpu.sm_count, (source, destination), *case, repetitions) for case in cases]


def _case(nvml: Any, handle: Any, device: Device, sms: int, pair: tuple[int, int], flavour: str, layout: str, repetitions: int) -> Wire:
    unit = 4 * Schedule((Burst(0),), 1, 4, flavour=flavour, layout=layout).warp_store_bytes * 4
    sizes = [size // unit * unit for size in (SMALL, LARGE)]
    executions = 4
    schedules = [Schedule((Burst(size),), sms, 4, *pair, flavour=flavour, layout=layout) for size in sizes]
    for s in schedules:
        _run(device, s, 1)  # loads and verifies the variant
    payload = executions * sms * (sizes[1] - sizes[0])
    found: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    for _ in range(repetitions):
        growth = []
        for s in schedules:
            time.sleep(SETTLE_S)
            before, _ = read_counters(nvml, handle)
            _run(device, s, executions)
            time.sleep(SETTLE_S)
            after, reasons = read_counters(nvml, handle)
            growth.append({name: after[name] - before[name] for name in after if name in before})
        for name in growth[1]:
            found.setdefault(name, []).append(float(np.round((growth[1][name] - growth[0][name]) / payload, 6)))
    return Wire(flavour, layout, payload, found, reasons)


def _run(device: Device, schedule: Schedule, count: int) -> None:
    for trace in device.measure([Execution(schedule, i) for i in range(count)]):
        if trace.status in ("corrupt", "timeout"):
            raise PairError(trace.detail, "run 'xstage doctor'")
