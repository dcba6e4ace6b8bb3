"""The buffer that ``cuda/xstage_stamps.cuh`` fills, byte for byte, and its three forms as a file: raw, npz, CSV (docs/own-kernel.md)."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError
from xstage_bench.io.csv_rows import check_width, is_hole, places_of_columns, rows_of, whole
from xstage_bench.io.json_file import read_bytes

MAGIC, VERSION = 0x50545358, 1
NO_EVENT = 0xFFFFFF
KINDS = ("burst", "compute", "wait", "signal")  # numbered from 1
FILE = np.dtype([(n, "<u4") for n in ("magic", "version", "slots", "records")] + [("reserved", "<u4", 12)])
SLOT = np.dtype(
    [(n, "<u4") for n in ("smid", "block", "warp", "written")]
    + [(n, "<u8") for n in ("first_clock", "first_ns", "last_clock", "last_ns")]
    + [("reserved", "<u4", 4)]
)
STAMP = np.dtype([(n, "<u4") for n in ("start_cycles", "end_cycles", "bytes", "kind_and_event")])
CSV_COLUMNS = ("smid", "block", "warp", "kind", "start_clock", "end_clock", "start_ns", "end_ns", "bytes", "event")
_NEEDED = ("smid", "kind", "start_clock", "end_clock", "start_ns", "end_ns", "bytes")
_FORMS = "a raw dump begins with XSTP, an npz holds the buffer as 'stamps', a CSV has the columns of docs/own-kernel.md"
_MAX_CLOCK = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Stamps:
    """All stamps of one launch, one entry each, those of a warp in order.

    Parameters
    ----------
    smid, block, warp, kind, event, bytes : ndarray of int, shape (stamps,)
        `kind` indexes `KINDS` from 1; `event` is -1 for none; `bytes` are those of this warp.
    start_clock, end_clock : ndarray of int
        The SM's own clock: to be compared on one SM only.
    start_ns, end_ns : ndarray of float
        After the launch's first, on %globaltimer, which all SMs of a GPU share.
    sm_clock_mhz : float
        Cycles over time, of all warps together.
    """

    smid: NDArray[np.int64]
    block: NDArray[np.int64]
    warp: NDArray[np.int64]
    kind: NDArray[np.int64]
    event: NDArray[np.int64]
    bytes: NDArray[np.int64]
    start_clock: NDArray[np.int64]
    end_clock: NDArray[np.int64]
    start_ns: NDArray[np.float64]
    end_ns: NDArray[np.float64]
    sm_clock_mhz: float

    def take(self, chosen: NDArray[Any]) -> Stamps:
        """Return some of the stamps."""
        columns = {name: getattr(self, name)[chosen] for name in CSV_COLUMNS}
        return Stamps(**columns, sm_clock_mhz=self.sm_clock_mhz)


def buffer_bytes(slots: int, records: int) -> int:
    """Bytes of the buffer that a kernel with so many slots, of so many records each, fills; zero it before the launch."""
    return FILE.itemsize + slots * (SLOT.itemsize + records * STAMP.itemsize)


def read_stamps(path: Path) -> Stamps:
    """Read a dump of stamps: raw bytes, npz or CSV, told apart by their content.

    Raises
    ------
    UsageError
        `path` does not exist.
    DataError
        It is none of the three, cut short, of a newer version, or a warp wrote more than its slot holds.
    """
    data = read_bytes(path)
    try:
        if data[:4] == MAGIC.to_bytes(4, "little"):
            return from_bytes(data)
        if data[:4] == b"PK\x03\x04":
            return from_bytes(_array_of_npz(data))
        return from_csv(data)
    except DataError as error:
        raise DataError(f"{path}: {error.message}", error.hint) from error


def from_bytes(data: bytes) -> Stamps:
    """Read the buffer itself; errors as `read_stamps`."""
    if len(data) < FILE.itemsize:
        raise DataError(f"{len(data)} bytes are no buffer of stamps", _FORMS)
    head = np.frombuffer(data, FILE, 1)[0]
    if head["magic"] != MAGIC:
        raise DataError("the buffer does not begin with XSTP", "did slot 0 execute XSTAGE_STAMPS, compiled with -DXSTAGE_STAMPS_ON?")
    if head["version"] != VERSION:
        raise DataError(f"stamps of version {head['version']}; this xstage-bench reads {VERSION}", "take both from one release")
    slots, records = int(head["slots"]), int(head["records"])
    if len(data) < buffer_bytes(slots, records):
        raise DataError(
            f"{len(data)} bytes, but {slots} slots of {records} records have {buffer_bytes(slots, records)}", "write the whole buffer"
        )
    slot = np.frombuffer(data, SLOT, slots, FILE.itemsize)
    table = np.frombuffer(data, STAMP, slots * records, FILE.itemsize + slots * SLOT.itemsize).reshape(slots, records)
    over = np.flatnonzero(slot["written"] > records)
    if over.size:
        most = int(slot["written"].max())
        raise DataError(f"slot {over[0]} had {slot['written'][over[0]]} stamps and room for {records}", f"give every slot {most} records")
    used = np.flatnonzero(slot["last_clock"] > slot["first_clock"])
    if not used.size or not slot["written"].any():
        raise DataError("no warp closed its stamps", "execute XSTAGE_STAMPS_END, and copy the buffer after the kernel has ended")
    return _flat(slot[used], table[used])


def _flat(slot: NDArray[Any], table: NDArray[Any]) -> Stamps:
    count = slot["written"].astype(np.int64)
    of = np.repeat(np.arange(slot.size), count)
    found = table[of, np.arange(of.size) - np.repeat(np.cumsum(count) - count, count)]
    mhz = _mhz(
        (slot["last_clock"] - slot["first_clock"]).astype(np.int64), slot["last_ns"].astype(np.int64) - slot["first_ns"].astype(np.int64)
    )
    kind = (found["kind_and_event"] >> 24).astype(np.int64)
    if ((kind < 1) | (kind > len(KINDS))).any():
        raise DataError(f"a stamp of kind {kind[(kind < 1) | (kind > len(KINDS))][0]}, which does not exist", "was the buffer zeroed?")
    event = (found["kind_and_event"] & NO_EVENT).astype(np.int64)
    start, end = (found[n].astype(np.int64) for n in ("start_cycles", "end_cycles"))
    clock = slot["first_clock"].astype(np.int64)[of]
    # %globaltimer counts from 1970: a double of it would be good to 256 ns only.
    at_ns = (slot["first_ns"] - slot["first_ns"].min()).astype(np.float64)[of]
    return Stamps(
        smid=slot["smid"].astype(np.int64)[of],
        block=slot["block"].astype(np.int64)[of],
        warp=slot["warp"].astype(np.int64)[of],
        kind=kind,
        event=np.where(event == NO_EVENT, -1, event),
        bytes=found["bytes"].astype(np.int64),
        start_clock=clock + start,
        end_clock=clock + end,
        start_ns=at_ns + start * 1e3 / mhz,
        end_ns=at_ns + end * 1e3 / mhz,
        sm_clock_mhz=mhz,
    )


def _array_of_npz(data: bytes) -> bytes:
    try:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            if "stamps" not in archive:
                raise DataError(
                    f"the npz has no array 'stamps', but {', '.join(archive.files) or 'none'}", "numpy.savez(FILE, stamps=buffer)"
                )
            return bytes(np.ascontiguousarray(archive["stamps"]).tobytes())
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"not an npz file ({error})", "numpy.savez(FILE, stamps=buffer)") from error


def from_csv(data: bytes) -> Stamps:
    """Read CSV with a header: one row per stamp, those of a warp in order; columns `CSV_COLUMNS`, errors as `read_stamps`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("neither XSTP, nor npz, nor UTF-8 text", _FORMS) from error
    rows = rows_of(text)
    line, header = next(rows, (1, []))
    places = places_of_columns(header, CSV_COLUMNS, _NEEDED, line)
    columns: dict[str, list[int]] = {name: [] for name in CSV_COLUMNS}
    for line, cells in rows:
        check_width(cells, len(header), line)
        for name in CSV_COLUMNS:
            columns[name].append(_cell(name, cells[places[name]] if name in places else "", line))
    if not columns["smid"]:
        raise DataError("no stamp in it", _FORMS)
    found = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    clock = _clock_of(found)
    zero = found["start_ns"].min()
    start_ns, end_ns = ((found.pop(name) - zero).astype(np.float64) for name in ("start_ns", "end_ns"))
    return Stamps(**found, start_ns=start_ns, end_ns=end_ns, sm_clock_mhz=clock)


def _cell(name: str, text: str, line: int) -> int:
    if name == "kind":
        if text.strip() not in KINDS:
            raise DataError(f"line {line}: kind '{text}' is none of {', '.join(KINDS)}", "write one of them")
        return KINDS.index(text.strip()) + 1
    if is_hole(text) and name not in _NEEDED:
        return -1 if name == "event" else 0
    value = whole(text)
    if value is None or not (-1 if name == "event" else 0) <= value < _MAX_CLOCK:
        raise DataError(
            f"line {line}: {name} is '{text}', not a whole number in its range", "clocks in cycles, times in ns, sizes in bytes"
        )
    return value


def _mhz(cycles: NDArray[np.int64], elapsed_ns: NDArray[np.int64]) -> float:
    """Return the SM clock: all cycles over all time, so that a warp of a few ticks of the timer does not spoil it."""
    if elapsed_ns.sum() <= 0:
        raise DataError("all stamps are of one moment of %globaltimer, so the SM clock is not known", "stamp a longer kernel")
    return float(cycles.sum() * 1e3 / elapsed_ns.sum())


def _clock_of(found: dict[str, NDArray[np.int64]]) -> float:
    mine = [found["smid"] == smid for smid in np.unique(found["smid"])]
    cycles, elapsed = (
        np.array([found[f"end_{unit}"][m].max() - found[f"start_{unit}"][m].min() for m in mine]) for unit in ("clock", "ns")
    )
    return _mhz(cycles, elapsed)
