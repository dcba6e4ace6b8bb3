"""Dumps of stamps: raw, npz and CSV say the same, and what is damaged is refused with one line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stamps_fake import fake_buffer

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.io.assets import asset_dir
from xstage_bench.measure.stamps.layout import CSV_COLUMNS, FILE, KINDS, MAGIC, SLOT, STAMP, Stamps, buffer_bytes, read_stamps


def as_csv(stamps: Stamps) -> str:
    out = io.StringIO()
    out.write(",".join(CSV_COLUMNS) + "\n")
    for i in range(stamps.smid.size):
        cells = [round(float(getattr(stamps, name)[i])) for name in CSV_COLUMNS]
        words = [KINDS[c - 1] if n == "kind" else "" if n == "event" and c < 0 else str(c) for n, c in zip(CSV_COLUMNS, cells, strict=True)]
        out.write(",".join(words) + "\n")
    return out.getvalue()


def test_the_layout_is_that_of_the_header() -> None:
    text = (asset_dir("cuda") / "xstage_stamps.cuh").read_text()
    for name, dtype in (("StampFile", FILE), ("StampSlot", SLOT), ("Stamp", STAMP)):
        body = re.search(rf"struct {name} {{(.*?)}};", text, re.S)
        assert body
        fields = [
            (kind, n.strip())
            for kind, names in re.findall(r"(unsigned(?: long long)?) ([a-z][^;]*);", body.group(1))
            for n in names.split(",")
        ]
        assert dtype.fields is not None
        mine = [(n, dtype.fields[n][0]) for n in dtype.names or ()]
        expected = [("unsigned long long" if d.base.itemsize == 8 else "unsigned", f"{n}[{d.shape[0]}]" if d.shape else n) for n, d in mine]
        assert fields == expected
    assert f"stamp_magic = 0x{MAGIC:08x}u" in text
    constants = re.search(r"burst_stamp = (\d), compute_stamp = (\d), wait_stamp = (\d), signal_stamp = (\d)", text)
    assert constants
    assert tuple(map(int, constants.groups())) == (1, 2, 3, 4)
    assert KINDS == ("burst", "compute", "wait", "signal")


@given(sms=st.integers(1, 5), warps=st.integers(1, 4), bursts=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_raw_npz_and_csv_are_the_same(tmp_path_factory: pytest.TempPathFactory, sms: int, warps: int, bursts: int, seed: int) -> None:
    folder = tmp_path_factory.mktemp("stamps")
    data = fake_buffer(sms=sms, warps=warps, bursts=bursts, seed=seed)
    (folder / "a.bin").write_bytes(data)
    np.savez_compressed(folder / "a.npz", stamps=np.frombuffer(data, np.uint8))
    raw, npz = (read_stamps(folder / name) for name in ("a.bin", "a.npz"))
    (folder / "a.csv").write_text(as_csv(raw))
    mine = raw.take(np.flatnonzero((raw.smid == sms - 1) & (raw.warp == warps - 1)))
    assert mine.kind.tolist() == [2, 1] * bursts
    assert mine.bytes.tolist() == [0, 2048] * bursts
    assert (np.diff(mine.start_clock) > 0).all()
    np.testing.assert_allclose(np.diff(mine.start_ns), np.diff(mine.start_clock) * 1e3 / raw.sm_clock_mhz, atol=1e-3)
    assert 0 <= raw.start_ns.min() < 10_000
    assert len(data) == buffer_bytes(sms * warps, 16)
    csv = read_stamps(folder / "a.csv")
    assert raw.smid.size == sms * warps * bursts * 2
    for name in CSV_COLUMNS:
        np.testing.assert_array_equal(getattr(raw, name), getattr(npz, name))
        offset = raw.start_ns.min() if name.endswith("_ns") else 0  # a CSV's times begin with its first stamp
        np.testing.assert_allclose(getattr(csv, name), getattr(raw, name) - offset, rtol=0, atol=1.01)
    assert raw.sm_clock_mhz == pytest.approx(1980, rel=1e-3)
    assert csv.sm_clock_mhz == pytest.approx(1980, rel=2e-2)


def spoiled(how: str) -> bytes:
    data = bytearray(fake_buffer(sms=2, warps=1, bursts=2, records=4))
    if how == "short":
        return bytes(data[:-1])
    if how == "head only":
        return bytes(data[:20])
    if how == "version":
        data[4] = 9
    if how == "overflow":
        data[64 + 12] = 5
    if how == "kind":
        data[64 + 2 * 64 + 15] = 77
    if how == "never closed":
        data[64 : 64 + 2 * 64] = bytes(128)
    return bytes(data)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("short", "2 slots of 4 records have"),
        ("head only", "20 bytes are no buffer"),
        ("version", "stamps of version 9"),
        ("overflow", "slot 0 had 5 stamps and room for 4"),
        ("kind", "a stamp of kind 77"),
        ("never closed", "no warp closed its stamps"),
    ],
)
def test_a_damaged_dump_says_what_is_wrong(how: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(spoiled(how))
    with pytest.raises(DataError, match=words) as caught:
        read_stamps(tmp_path / "x.bin")
    assert str(tmp_path / "x.bin") in caught.value.message
    assert caught.value.hint


HEAD = b"smid,kind,start_clock,end_clock,start_ns,end_ns,bytes\n"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"", "column 'smid' is missing"),
        ("x.csv", b"smid,kind\n1,burst\n", "column 'start_clock' is missing"),
        ("x.csv", HEAD, "no stamp in it"),
        ("x.csv", HEAD + b"0,store,0,1,0,1,512\n", "line 2: kind 'store' is none of"),
        ("x.csv", HEAD + b"0,burst,0,1,0,1,-512\n", "line 2: bytes is '-512'"),
        ("x.csv", HEAD + b"0,burst,0,1,0,x,512\n", "line 2: end_ns is 'x'"),
        ("x.csv", HEAD + b"0,burst,0,1,0,512\n", "line 2: 6 cells"),
        ("x.csv", HEAD + b"0,burst,0,1,7,7,512\n", "the SM clock is not known"),
        ("cut.npz", b"PK\x03\x04 no zip", "not an npz"),
        ("latin", b"\xff\xfe\x00", "neither XSTP"),
    ],
)
def test_what_holds_no_stamps_names_line_and_value(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=re.escape(words)):
        read_stamps(tmp_path / name)
    np.savez(tmp_path / "other.npz", data=np.zeros(3))
    with pytest.raises(DataError, match="no array 'stamps', but data"):
        read_stamps(tmp_path / "other.npz")
    with pytest.raises(UsageError, match="no such file"):
        read_stamps(tmp_path / "absent")


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, marked: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.bin"
    path.write_bytes(MAGIC.to_bytes(4, "little") + b"\x01\x00\x00\x00" + data if marked else data)
    try:
        assert read_stamps(path).smid.size
    except XStageError as error:
        assert error.hint  # noqa: PT017 - most are refused
