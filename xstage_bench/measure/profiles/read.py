"""Which of the forms a profile has, told by its content, and its time line as tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xstage_bench.errors import DataError, UsageError
from xstage_bench.io.csv_rows import header_of
from xstage_bench.io.json_file import read_bytes
from xstage_bench.measure.profiles.kernels import KernelRun, runs_of_csv, runs_of_trace
from xstage_bench.measure.profiles.proton import is_proton, stamps_of
from xstage_bench.measure.profiles.slices import TraceSlice, slices_of
from xstage_bench.measure.stamps.layout import MAGIC, Stamps, read_stamps
from xstage_bench.measure.stamps.tasks import tasks_of
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.tasks import TaskTrace

Profile = Stamps | list[TraceSlice] | list[KernelRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLineWords:
    """What a Proton time line does not say: bytes of a tile, SM clock in MHz, and which scopes and kernel are meant."""

    tile_bytes: int | None
    sm_clock_mhz: float
    store: str | None = None
    compute: str | None = None
    kernel: str | None = None


def read_profile(path: Path) -> Profile:
    """Read stamps, a Proton time line (its slices), or a table or trace of kernels (their launches).

    Raises
    ------
    UsageError
        `path` does not exist.
    DataError
        It is none of these, or not whole.
    """
    data = read_bytes(path)
    if data[:4] in (MAGIC.to_bytes(4, "little"), b"PK\x03\x04"):
        return read_stamps(path)
    if data[:9].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        slices = slices_of(path, data)
        return slices if is_proton(slices) else runs_of_trace(slices)
    if not data.strip():
        raise DataError(f"{path} is empty", "it was not written completely: make it again")
    if "smid" in header_of(data[:4096].decode("utf-8-sig", errors="replace")):
        return read_stamps(path)
    return runs_of_csv(path, data)


def kernels_in(profile: Profile) -> list[KernelRun] | None:
    """Return the launches in a profile; None where it is a time line inside of a kernel."""
    if isinstance(profile, Stamps) or any(isinstance(one, TraceSlice) for one in profile[:1]):
        return None
    return [one for one in profile if isinstance(one, KernelRun)]


def time_line_of(profile: Profile, path: Path, words: TimeLineWords, *, pair: str, flavour: str) -> TaskTrace:
    """Return a time line as executed tasks.

    Raises
    ------
    UsageError
        It is no time line, or something that it does not say is missing.
    DataError
        As `tasks_of`.
    """
    source, destination = (int(end) for end in pair.split(">"))
    if not isinstance(profile, Stamps):
        slices = [s for s in profile if isinstance(s, TraceSlice)]
        if not slices:
            raise UsageError(f"{path} has whole kernels only, and the other file is a time line", "give two of one kind")
        if words.tile_bytes is None:
            raise UsageError("a Proton time line does not say how much is stored", "--tile-bytes of one burst of an SM")
        profile = stamps_of(
            slices, path, sm_clock_mhz=words.sm_clock_mhz, tile_bytes=words.tile_bytes,
            unit_bytes=FLAVOURS[flavour].warp_store_bytes, store=words.store, compute=words.compute, kernel=words.kernel,
        )  # fmt: skip
    try:
        return tasks_of(profile, source, destination, flavour, name=path.name)[1]
    except DataError as error:
        raise DataError(f"{path}: {error.message}", error.hint) from error
