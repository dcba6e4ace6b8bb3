"""Runs ``cuda/pacing.cu`` on one GPU: schedules whose producers ask the pacer. Needs a GPU with a usable peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.gpu import CudaGpu
from xstage_bench.device.cuda.host_memory import expected
from xstage_bench.device.cuda.layout import WINDOW_BYTES, spread_evenly
from xstage_bench.errors import DeviceLostError, PairError, UsageError
from xstage_bench.model.stage import Stage

Rule = Literal["timed", "fixed", "paced"]
RULES: tuple[str, ...] = get_args(Rule)
Work = Literal["spin", "mma"]
WORKS: tuple[str, ...] = get_args(Work)
STEP = np.dtype([(n, "<u4") for n in ("work", "stores", "start_ns", "pad")])
REPORT = np.dtype([(n, "<u4") for n in ("answer", "start", "end", "waiting")])
CONTROL = np.dtype(
    [(n, "<u4") for n in ("arrived", "released", "timed_out", "pad")]
    + [(n, "<u8") for n in ("start_ns", "first_clock", "first_ns", "last_clock", "last_ns")]
)
NUMBER = np.dtype([("value", "<f4"), ("low", "<f4"), ("high", "<f4"), ("known", "?"), ("pad", "V3")])
STAGE = np.dtype(
    [("producers", "<i4"), ("warps", "<i4"), ("warp_store_bytes", "<i4"), ("sm_clock_mhz", "<f4"), ("reference_bytes", "<i4")]
    + [("producer_limited", "?"), ("pad", "V3")]
    + [(n, NUMBER) for n in ("t0_cycles", "drain_gb_per_s", "capacity_bytes")]
    + [(n, "<f4") for n in ("issue_base_cycles", "issue_cycles_per_store", "rate_gb_per_s", "stalled_gb_per_s", "stalled_capacity_bytes")]
)
MAX_STEPS = 256
_LEAD_NS, _TIMEOUT_NS = 3000, 1_000_000_000
_THREADS = 512
_POISON = 0xA5A5A5A5


@dataclass(frozen=True, slots=True, eq=False)
class Paced:
    """One execution.

    Parameters
    ----------
    answer : ndarray of bool, shape (K, steps)
        What the pacer said right before each burst.
    start_cycles, end_cycles : ndarray of int, shape (K, steps)
        First warp's start and last warp's end of each burst, after the producer's own start.
    sm_clock_mhz : float
        Of the first producer, over the whole execution.
    """

    answer: NDArray[np.bool_]
    start_cycles: NDArray[np.int64]
    end_cycles: NDArray[np.int64]
    sm_clock_mhz: float

    @property
    def issue_cycles(self) -> NDArray[np.int64]:
        """Issue time of each burst; shape (K, steps)."""
        return self.end_cycles - self.start_cycles

    @property
    def total_cycles(self) -> int:
        """Until the last producer has issued its last burst."""
        return int(self.end_cycles.max())


def packed_stage(stage: Stage) -> NDArray[Any]:
    """Return the bytes of a ``xstage::Stage``; the numbers with intervals are left out, since no helper reads them."""
    out = np.zeros(1, dtype=STAGE)
    for name in ("producers", "warps", "warp_store_bytes", "sm_clock_mhz", "issue_base_cycles", "issue_cycles_per_store"):
        out[name] = getattr(stage, name)
    out["reference_bytes"] = stage.bytes
    out["producer_limited"] = stage.limited_by == "producer"
    for name in ("rate_gb_per_s", "stalled_gb_per_s", "stalled_capacity_bytes"):
        out[name] = getattr(stage, name) or 0.0
    return out


class Pacing:
    """The kernel, loaded on `source`, and memory on `destination` that it stores to."""

    def __init__(self, source: int = 0, destination: int = 1) -> None:
        self._gpu, self._tag = CudaGpu(source), 1
        self._gpu.reach((destination,))
        self._destination = self._gpu if source == destination else CudaGpu(destination)
        shared = {"pacing": self._gpu.lone_bytes}
        self._kernels = {
            work: self._gpu.load("pacing.cu", shared, {"XSTAGE_COMPUTE": str(i)}, cooperative=True)["pacing"]
            for i, work in enumerate(WORKS)
        }
        self.window = self._destination.room(self.sm_count * WINDOW_BYTES)

    @property
    def sm_count(self) -> int:
        """SMs of the source."""
        return self._gpu.sms

    def run(self, stage: Stage, steps: NDArray[Any], rule: Rule, depth: int = 1, work: Work = "spin") -> Paced:
        """Execute one schedule on K evenly spread SMs.

        Parameters
        ----------
        stage : Stage
            Says K and W, and is what the pacer believes.
        steps : ndarray of STEP
            The same for every producer.
        rule : {'timed', 'fixed', 'paced'}
        depth : int
            ``fixed``: works before their bursts; ``paced``: bursts that may wait.
        work : {'spin', 'mma'}

        Raises
        ------
        DeviceLostError
            The CTAs did not meet in time.
        """
        gpu, sms = self._gpu, self.sm_count
        k, count = stage.producers, len(steps)
        if not 1 <= count <= MAX_STEPS or k > sms:
            raise UsageError(f"{count} steps on {k} SMs: at most {MAX_STEPS} steps and {sms} SMs", "use fewer")
        for name, array in {"steps": steps, "chosen": spread_evenly(k, sms), "stage": packed_stage(stage)}.items():
            gpu.uploaded(array, name)
        for name, size in {"reports": k * count * REPORT.itemsize, "control": CONTROL.itemsize}.items():
            gpu.zeroed(size, name)
        u32, u64, at = np.uint32, np.uint64, gpu.at
        self._tag += 1 << 16
        arguments = (
            at("steps"), u32(count), u32(RULES.index(rule)), u32(depth), at("chosen"), u32(stage.warps), at("stage"), u64(self.window),
            u32(WINDOW_BYTES), u32(self._tag & 0xFFFFFFFF), at("reports"), at("control"), u32(_LEAD_NS), u64(_TIMEOUT_NS),
        )  # fmt: skip
        gpu.launch(self._kernels[work], (sms,), _THREADS, arguments)
        gpu.synchronize()
        facts = gpu.downloaded("control", CONTROL)[0]
        if facts["timed_out"]:
            raise DeviceLostError("the CTAs of the pacing kernel did not meet", "is another program using the GPU? nvidia-smi")
        found = gpu.downloaded("reports", REPORT, (k, count))
        elapsed_ns = max(int(facts["last_ns"]) - int(facts["first_ns"]), 1)
        return Paced(
            answer=found["answer"] != 0,
            start_cycles=found["start"].astype(np.int64),
            end_cycles=found["end"].astype(np.int64),
            sm_clock_mhz=(int(facts["last_clock"]) - int(facts["first_clock"])) * 1e3 / elapsed_ns,
        )

    def verify(self, stage: Stage, stores: int) -> None:
        """Poison the destination, store one burst, and check every byte, stray writes included.

        Raises
        ------
        PairError
            Naming the producer and how many words are wrong.
        """
        steps = np.zeros(1, dtype=STEP)
        steps["stores"] = stores
        self._destination.fill(self.window, _POISON & 0xFF, self.sm_count * WINDOW_BYTES)
        self.run(stage, steps, "fixed")
        found = self._destination.downloaded(self.window, np.uint32, (self.sm_count, WINDOW_BYTES // 4))
        for producer, have in enumerate(found):
            mine = stores if producer < stage.producers else 0
            wrong = np.count_nonzero(have != expected(WINDOW_BYTES, producer, stage.warps, mine, self._tag, _POISON))
            if wrong:
                pair = f"pair {self._gpu.index}>{self._destination.index}"
                raise PairError(f"{pair}: {wrong} words of producer {producer} are wrong", "xstage doctor")
