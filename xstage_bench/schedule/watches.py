"""When a store becomes visible: what to watch while a Schedule is executed, and what was seen.

Three kernels run at once (results/h200-x2/visibility); the schedule's producers, a prober on an idle SM of the source, and a responder that
watches the destination's memory and answers. Every time is the source's own; nothing is synchronised between GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.flavour import FLAVOURS

Mode = Literal["curve", "ping", "message"]
MODES: tuple[str, ...] = get_args(Mode)
#: Which kernel is launched in another memory synchronisation domain than the default: none; the prober (as ``remote``, or by mapping its
#: default to a number of its own); the producers.
Domains = Literal["same", "prober", "prober.mapped", "producers"]
DOMAINS: tuple[str, ...] = get_args(Domains)
#: Ways to set a flag. The number that the kernel knows is the position.
METHODS: tuple[str, ...] = ("relaxed", "release.gpu", "release.sys", "red.release.gpu", "red.release.sys", "fence.sc.sys")
#: Payload bytes of one warp-store of a message, by format. ``flag``: data, barrier, one thread sets a flag by the method;
#: ``flag.each``: every thread fences first; ``ll`` and ``ll128``: flags inside the data; ``ll512``: one flag per warp-store, which nobody
#: promises to be whole.
FORMATS: dict[str, int] = {"flag": 512, "flag.each": 512, "ll": 256, "ll128": 480, "ll512": 504}

RESERVED_SMS = 2  # the last pair of SMs: the prober's, and its neighbour's (the responder's, when the destination is the source itself)
WINDOW_BYTES = 256 * 1024
LONG_WINDOW_BYTES = 2 * 1024 * 1024  # not in mode curve: its stamps hold one short window
MAX_STREAMS = 992
MAX_PINGS = 1024
MAX_REPETITIONS = 64
WARMUP = 1  # repetitions at the start of each launch that are kept and enter no number: the first burst after idle is several times slower


@dataclass(frozen=True, slots=True)
class Watch:
    """One schedule, and what is watched while it makes its backlog.

    Parameters
    ----------
    schedule : Schedule
        One isolated burst of any flavour and layout; zero bytes leave the link idle. The last two SMs of the source are not available.
    mode : {'curve', 'ping', 'message'}
        The course of the burst's own stores; a flag from an idle SM, again and again; or messages of several warps from it.
    method : str
        One of `METHODS`; how flags are set.
    format : str
        One of `FORMATS`; ``message`` only.
    repetitions : int
    stride : int
        ``curve``: every how many warp-stores of a warp one is watched.
    idle_pings, pings : int
        Per repetition, before the burst and from its start until it has drained.
    ping_delay_ns, lag_cycles : tuple of int
        Per repetition, repeated as needed: from the burst's start to the first ping; from a warp's last store to its own publishing.
    publish : bool
        Every storing warp sets a flag by the method, `lag_cycles` after its last store.
    payload_bytes : int
        Of one message.
    message_warps : int
    misaligned_bytes : int
        Offset of messages from a 128-byte line.
    domains : str
        One of `DOMAINS`.
    beside : bool
        ``ping`` only: the prober's block shares an SM with a block of the producers' kernel instead of having one of its own.

    Raises
    ------
    UsageError
        What the instrument cannot do.
    """

    schedule: Schedule
    mode: Mode = "ping"
    method: str = "relaxed"
    format: str = "flag"
    repetitions: int = 20
    stride: int = 4
    idle_pings: int = 16
    pings: int = 64
    ping_delay_ns: tuple[int, ...] = (0,)
    lag_cycles: tuple[int, ...] = (0,)
    publish: bool = False
    payload_bytes: int = 480
    message_warps: int = 16
    misaligned_bytes: int = 0
    domains: Domains = "same"
    beside: bool = False

    def __post_init__(self) -> None:
        s = self.schedule
        if len(s.bursts) != 1 or s.start != "isolated":
            raise UsageError("visibility is watched over one isolated burst", "use Schedule((Burst(bytes),), ...)")
        if self.mode == "message" and not self.stamps_groups:
            raise UsageError("messages are watched behind contiguous st.v4 only", "use mode ping behind other flavours")
        if self.mode not in MODES or self.method not in METHODS or self.format not in FORMATS:
            raise UsageError(
                f"unknown mode, method or format: {self.mode}, {self.method}, {self.format}", f"{MODES}, {METHODS}, {tuple(FORMATS)}"
            )
        if self.domains not in DOMAINS or (self.beside and self.mode != "ping"):
            raise UsageError(
                f"domains '{self.domains}', beside {self.beside} in mode {self.mode}", f"one of {DOMAINS}; beside only in mode ping"
            )
        group = FLAVOURS[s.flavour].group
        if s.bursts[0].bytes > self.window_bytes or self.stores_per_warp % group:
            raise UsageError(
                f"{s.bursts[0].bytes} bytes: a watched burst has whole groups of {group} warp-stores per warp, "
                f"{self.window_bytes} bytes at most",
                f"a multiple of {group * s.warp_store_bytes * s.warps}",
            )
        if self.mode == "curve" and (self.streams > MAX_STREAMS or self.stride < 1 or self.stores_per_warp % self.stride):
            raise UsageError(
                f"{self.streams} warps, stride {self.stride}: at most {MAX_STREAMS}, dividing {self.stores_per_warp}", "change them"
            )
        if not (1 <= self.repetitions <= MAX_REPETITIONS and 0 <= self.pings + self.idle_pings <= MAX_PINGS):
            raise UsageError(f"at most {MAX_REPETITIONS} repetitions of {MAX_PINGS} pings", "use fewer")
        if not (1 <= self.message_warps <= 16 and 1 <= self.payload_bytes <= 61440 and self.misaligned_bytes in range(0, 128, 16)):
            raise UsageError("messages have 1 to 16 warps, at most 61440 bytes and an offset of a multiple of 16 below 128", "change them")
        if not self.ping_delay_ns or not self.lag_cycles or min(self.ping_delay_ns + self.lag_cycles) < 0:
            raise UsageError("delays and lags are one or more numbers of 0 or more", "for example (0,)")

    @property
    def window_bytes(self) -> int:
        """Destination bytes of one producer."""
        return WINDOW_BYTES if self.mode == "curve" else LONG_WINDOW_BYTES

    @property
    def stamps_groups(self) -> bool:
        """True when every group of the burst is stamped, for the drain curve; else its start and end only, by the instrument's own loop."""
        return (self.schedule.flavour, self.schedule.layout) == ("st.v4", "contiguous")

    @property
    def stores_per_warp(self) -> int:
        """Warp-stores of each storing warp."""
        return int(self.schedule.stores_per_warp()[0])

    @property
    def streams(self) -> int:
        """Storing warps."""
        return self.schedule.producer_count * self.schedule.warps

    @property
    def markers(self) -> int:
        """Watched warp-stores of each storing warp."""
        return self.stores_per_warp // self.stride

    @property
    def message_stores(self) -> int:
        """Warp-stores of one message: payload in whole ones."""
        return -(-self.payload_bytes // FORMATS[self.format])


@dataclass(frozen=True, slots=True, eq=False)
class Sighting:
    """What was seen. Times in ns are after the common start, on the source's %globaltimer; cycles are of the SM that measured them.

    Parameters
    ----------
    watch : Watch
    smids : ndarray of int, shape (K,)
    prober_smid : int
    sm_clock_mhz : float
        Of the prober's SM, over all repetitions.
    start_ns, end_ns : ndarray, shape (R, K)
        Issue of each producer: first warp's start, last warp's end.
    issue_cycles, publish_cycles : ndarray, shape (R, K)
        `publish_cycles` is that of the slowest warp, NaN where nothing was published.
    issued_ns : ndarray, shape (R, K, W, groups)
        When each group of four warp-stores had been issued; ``curve`` of contiguous st.v4 only, else empty.
    seen_ns : ndarray, shape (R, K, W, markers)
        When the answer to each watched warp-store was seen; ``curve`` only, else empty.
    at_ns : ndarray, shape (R, pings)
        Start of each flag or message, NaN for those before the burst.
    ping_issue_cycles, ping_publish_cycles, round_trip_cycles : ndarray, shape (R, pings)
        Flag: the flag's own instructions; message: its data, then its publishing; both: until the answer was seen. NaN where none was sent.
    reusable_cycles, completed_cycles : ndarray, shape (R, K)
        Bulk copies: after the end of issue, until the source may be written again (``wait_group.read``) and until ``wait_group``
        returned, of the slowest warp. NaN for stores, whose source is a register.
    wrong, torn, lines : int
        16-byte words of the burst that were wrong at the destination; 16-byte words of messages that were not yet there although their
        flag was; 128-byte lines of messages received.
    status : {'ok', 'corrupt', 'timeout'}
    """

    watch: Watch
    smids: NDArray[np.int64]
    prober_smid: int
    sm_clock_mhz: float
    start_ns: NDArray[np.float64]
    end_ns: NDArray[np.float64]
    issue_cycles: NDArray[np.float64]
    publish_cycles: NDArray[np.float64]
    issued_ns: NDArray[np.float64]
    seen_ns: NDArray[np.float64]
    at_ns: NDArray[np.float64]
    ping_issue_cycles: NDArray[np.float64]
    ping_publish_cycles: NDArray[np.float64]
    round_trip_cycles: NDArray[np.float64]
    reusable_cycles: NDArray[np.float64]
    completed_cycles: NDArray[np.float64]
    wrong: int
    torn: int
    lines: int
    status: Literal["ok", "corrupt", "timeout"]

    def idle_round_trip_cycles(self) -> NDArray[np.float64]:
        """Round trips of plain flags before the bursts, without the first two of each repetition."""
        step = 1 if self.watch.mode == "curve" else 2  # elsewhere plain flags and the method alternate
        trips = self.round_trip_cycles[WARMUP:, 2 : self.watch.idle_pings : step]
        return trips[np.isfinite(trips)]
