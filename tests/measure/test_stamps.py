"""Stamps: machine code, dumps alike in every format, and what becomes of them; refusals say what is wrong."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import h200
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from static_facts import holds, mirrored

from xstage_bench.cli import run
from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_source
from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.io.assets import asset_dir
from xstage_bench.measure.stamps.layout import (
    CSV_COLUMNS,
    FILE,
    KINDS,
    MAGIC,
    NO_EVENT,
    SLOT,
    STAMP,
    Stamps,
    buffer_bytes,
    from_bytes,
    read_stamps,
)
from xstage_bench.measure.stamps.record import read_traces, record_traces
from xstage_bench.measure.stamps.schedule import trace_of
from xstage_bench.measure.stamps.tasks import tasks_of
from xstage_bench.model.document import load_model
from xstage_bench.model.predict import predict
from xstage_bench.model.validate import validate
from xstage_bench.record.reader import load_run, schedules_of
from xstage_bench.schedule.burst_files import load_bursts
from xstage_bench.schedule.task_files import load_tasks

BURST, COMPUTE, WAIT, SIGNAL = 1, 2, 3, 4
Part = tuple[int, int, int, int, int]  # kind, start, end (cycles after the warp's own first stamp), bytes of the warp, event


def pack(slots: list[dict[str, int]], parts: list[list[Part]], records: int, *, mhz: float = 1980.0) -> bytes:
    """Return the buffer of these slots (smid, block, warp, first_clock, first_ns) and what each stamped."""
    file = np.zeros(1, FILE)
    file["magic"], file["version"], file["slots"], file["records"] = MAGIC, 1, len(slots), records
    heads, table = np.zeros(len(slots), SLOT), np.zeros((len(slots), records), STAMP)
    for head, row, slot, mine in zip(heads, table, slots, parts, strict=True):
        for name, value in slot.items():
            head[name] = value
        length = max((end for _, _, end, _, _ in mine), default=0) + 50
        head["written"] = len(mine)
        head["last_clock"] = slot["first_clock"] + length
        head["last_ns"] = slot["first_ns"] + round(length * 1e3 / mhz)
        for i, (kind, start, end, size, event) in enumerate(mine[:records]):
            row[i] = (start, end, size, kind << 24 | event)
    return file.tobytes() + heads.tobytes() + table.tobytes()


def fake_buffer(
    *, sms: int = 3, warps: int = 2, bursts: int = 4, seed: int = 0, records: int = 16, bytes_per_warp: int = 2048, gap: int = 20_000
) -> bytes:
    """Return the buffer of a kernel with one block per SM, whose warps drift by some cycles; smids are 0 to sms - 1."""
    rng = np.random.default_rng(seed)
    slots, parts = [], []
    for sm in range(sms):
        clock = int(rng.integers(10**6, 10**9))
        for warp in range(warps):
            lag = int(rng.integers(0, 40))
            slots.append(
                {"smid": sm, "block": sm, "warp": warp, "first_clock": clock + lag, "first_ns": 1_764_450_000 * 10**9 + 700 * sm + lag // 2}
            )
            mine: list[Part] = []
            at = 100
            for _ in range(bursts):
                computed = at + gap
                stored = computed + 300 + int(rng.integers(0, 100))
                mine += [(COMPUTE, at, computed - 10, 0, NO_EVENT), (BURST, computed, stored, bytes_per_warp, NO_EVENT)]
                at = computed + 420
            parts.append(mine)
    return pack(slots, parts, max(records, 2 * bursts))


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kernel() -> str:
    found = re.search(r'SOURCE = r"""(.*?)"""', (ROOT / "docs" / "own-kernel.md").read_text(), re.S)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_stamps_enclose_the_stores(kernel: str, arch: str, sass_of) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    lines = sass_of(compile_source(kernel, "tiles.cu", arch, {"XSTAGE_STAMPS_ON": "1"}), "tiles")
    stores = [i for i, line in enumerate(lines) if re.search(r"\bSTG\.E\.128\b", line)]
    clocks = [i for i, line in enumerate(lines) if "SR_CLOCK" in line]
    fence = [i for i, line in enumerate(lines) if line.startswith("MEMBAR") and ".CTA" in line]
    assert len(fence) == 1
    before = max(c for c in clocks if c < fence[0])
    after = min(c for c in clocks if c > fence[0])
    inside = [i for i in stores if before < i < fence[0]]
    assert len(inside) == 16, "all 16 stores of a tile lie between the first clock read and the fence"
    assert not [i for i in stores if fence[0] < i < after], "nothing is stored between the fence and the second clock read"
    assert not [line for line in lines if re.search(r"\b(LDL|STL)", line)]


def test_without_the_switch_nothing_is_left(kernel: str, sass_of) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    lines = sass_of(compile_source(kernel, "tiles.cu", "sm_90"), "tiles")
    bare = re.sub(r"^\s*XSTAGE_.*$|^#include.*$", "", kernel, flags=re.M)
    assert lines == sass_of(compile_source(bare, "bare.cu", "sm_90"), "tiles")
    assert "CLOCK" not in "\n".join(lines)


def test_nvcc_takes_it_without_a_warning(kernel: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    (tmp_path / "tiles.cu").write_text(kernel)
    options = ["-std=c++17", "-arch=sm_90a", f"-I{asset_dir('cuda')}", "-cubin", "-Werror", "all-warnings", "-o", "tiles.cubin"]
    for switch in ([], ["-DXSTAGE_STAMPS_ON"]):
        done = subprocess.run(["nvcc", *options, *switch, "tiles.cu"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_layout_is_that_of_the_header() -> None:
    facts = {f"xstage::{name}_stamp": number for number, name in enumerate(KINDS, 1)}
    facts |= {"xstage::stamp_magic": MAGIC, "xstage::no_event": NO_EVENT}
    for name, dtype in (("StampFile", FILE), ("StampSlot", SLOT), ("Stamp", STAMP)):
        facts |= mirrored(f"xstage::{name}", dtype)
    holds("xstage_stamps.cuh", facts)


def as_csv(stamps: Stamps) -> str:
    out = io.StringIO()
    out.write(",".join(CSV_COLUMNS) + "\n")
    for i in range(stamps.smid.size):
        cells = [round(float(getattr(stamps, name)[i])) for name in CSV_COLUMNS]
        words = [KINDS[c - 1] if n == "kind" else "" if n == "event" and c < 0 else str(c) for n, c in zip(CSV_COLUMNS, cells, strict=True)]
        out.write(",".join(words) + "\n")
    return out.getvalue()


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


def stamps_of(*lists: list[Part], warps: int = 1, block_of: tuple[int, ...] | None = None) -> Stamps:
    """One list per warp; `warps` of them share an SM and a block."""
    slots = [
        {"smid": i // warps, "block": block_of[i] if block_of else i // warps, "warp": i % warps, "first_clock": 1000, "first_ns": 5000}
        for i in range(len(lists))
    ]
    return from_bytes(pack(slots, list(lists), 32))


def test_a_burst_begins_with_the_first_warp_and_ends_with_the_last() -> None:
    a = [(BURST, 100, 400, 512, NO_EVENT), (BURST, 2000, 2300, 1024, NO_EVENT)]
    b = [(BURST, 90, 350, 512, NO_EVENT), (BURST, 2050, 2600, 1024, NO_EVENT)]
    trace = trace_of(stamps_of(a, b, warps=2), 1, 0)
    s = trace.schedule
    assert (s.source, s.destination, s.warps, s.start, s.producers) == (1, 0, 2, "free", (0,))
    assert [burst.bytes for burst in s.bursts] == [1024, 2048]
    assert trace.issue_cycles.ravel().tolist() == [310, 600]
    assert trace.gap_cycles.ravel()[1] == 1600
    assert [burst.gap_cycles for burst in s.bursts] == [0, 1400]  # the instrument adds 200 to what it is asked for
    np.testing.assert_allclose(trace.end_ns - trace.start_ns, trace.issue_cycles * 1e3 / trace.sm_clock_mhz)
    assert trace.start_ns.min() == 0
    assert np.isnan(trace.drain_cycles).all()


def test_blocks_one_after_the_other_on_an_sm_are_one_producer() -> None:
    early, late = [(BURST, 100, 200, 512, NO_EVENT)], [(BURST, 5000, 5100, 512, NO_EVENT)]
    stamps = stamps_of(early, late, block_of=(0, 9))
    together = replace(stamps, smid=np.zeros_like(stamps.smid))
    trace = trace_of(together)
    assert trace.schedule.producers == (0,)
    assert trace.issue_cycles.ravel().tolist() == [100, 100]
    at_once = replace(together, start_clock=np.array([1100, 1150]), end_clock=np.array([1200, 1250]))
    with pytest.raises(DataError, match="two blocks stamped at the same time on SM 0"):
        trace_of(at_once)


@pytest.mark.parametrize(
    ("lists", "warps", "words"),
    [
        ([[(COMPUTE, 0, 10, 0, NO_EVENT)]], 1, "no burst was stamped"),
        (
            [[(BURST, 0, 9, 512, NO_EVENT)], [(BURST, 0, 9, 1024, NO_EVENT)]],
            1,
            "SM 1 stored 1 bursts of 1024 bytes, SM 0 1 bursts of 512 bytes",
        ),
        ([[(BURST, 0, 9, 512, NO_EVENT)], [(COMPUTE, 0, 9, 0, NO_EVENT)]], 2, "warps 0 and 1 stamped different parts"),
        ([[(BURST, 0, 9, 500, NO_EVENT)]], 1, "not a multiple"),
    ],
)
def test_what_no_schedule_describes_is_refused(lists: list[list[Part]], warps: int, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        trace_of(stamps_of(*lists, warps=warps))
    assert caught.value.hint


def test_tasks_have_the_time_between_stamped_parts_as_compute() -> None:
    a: list[Part] = [
        (COMPUTE, 0, 1000, 0, NO_EVENT),
        (BURST, 1100, 1500, 2048, NO_EVENT),
        (SIGNAL, 1500, 1700, 0, 3),
        (BURST, 2700, 2900, 512, NO_EVENT),
    ]
    b: list[Part] = [(WAIT, 0, 1800, 0, 3), (BURST, 2300, 2400, 1024, NO_EVENT), (COMPUTE, 2400, 3000, 0, NO_EVENT)]
    schedule, trace = tasks_of(stamps_of(a, b), publish="release.sys", name="pair")
    assert schedule.producers == (0, 1)
    assert schedule.producer.tolist() == [0, 0, 1, 1]
    assert schedule.compute_cycles.tolist() == [1100, 1000, 500, 600]
    assert schedule.bytes.tolist() == schedule.remote_bytes.tolist() == [2048, 512, 1024, 0]
    assert schedule.signals.tolist() == [3, -1, -1, -1]
    assert schedule.waits_for.tolist() == [-1, -1, 3, -1]
    assert (schedule.form, schedule.publish) == ("single", "release.sys")
    ns = 1e3 / trace.sm_clock_mhz
    np.testing.assert_allclose(trace.start_ns, np.array([0, 1700, 1800, 2400]) * ns, atol=1e-6)
    np.testing.assert_allclose(trace.store_end_ns, np.array([1500, 2900, 2400, np.nan]) * ns, atol=1e-6)
    assert trace.signal_end_ns[0] == pytest.approx(1700 * ns)
    assert trace.total_ns == pytest.approx(3000 * ns)
    with pytest.raises(DataError, match="waits for event 4, which no task signals"):
        tasks_of(stamps_of([(WAIT, 0, 10, 0, 4), (BURST, 20, 30, 512, NO_EVENT)]))


def test_launches_become_a_run_folder_that_validate_judges(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(fake_buffer(sms=132, warps=4, bursts=5, seed=i))
    traces = read_traces(paths)
    record_traces(traces, tmp_path / "run", ["xstage", "import"], ["a", "b", "c"], "NVIDIA H200")
    run = load_run(tmp_path / "run")
    assert run.manifest.complete
    assert "imported" in run.manifest.notes[0]
    samples = run.samples()
    assert list(schedules_of(samples).values()) == [traces[0].schedule]
    assert sorted(samples["repetition"].unique()) == [0, 1, 2]
    model = load_model(h200.MODEL)
    scores = {m.model: m for m in validate(model, samples).models}
    assert scores["node"].n_bursts == 5
    measured = np.median([t.issue_cycles.mean(axis=1) for t in traces], axis=0)
    predicted = predict(model, traces[0].schedule).issue_cycles
    error = np.median(np.abs(predicted - measured) / measured)
    assert scores["node"].issue_time.median_error == pytest.approx(error, rel=1e-3)
    assert len(run.producers()) == 3 * 5 * 132
    paths[1].write_bytes(fake_buffer(sms=132, warps=3, bursts=5))
    with pytest.raises(DataError, match=r"1\.bin has other bursts or SMs than .*0\.bin"):
        read_traces(paths)


def test_the_verb_writes_what_predict_and_validate_take(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.bin").write_bytes(fake_buffer(sms=4))
    words = ["import", str(tmp_path / "a.bin"), "--json", "--out", str(tmp_path / "run")]
    assert run([*words, "--schedule", str(tmp_path / "s.json"), "--tasks", str(tmp_path / "t.json")]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["producers"], document["warps"], document["launches"]) == (4, 2, 1)
    assert [b["bytes"] for b in document["bursts"]] == [4096] * 4
    (schedule,) = load_bursts(tmp_path / "s.json")
    assert schedule.producers == (0, 1, 2, 3)
    (tasks,) = load_tasks(tmp_path / "t.json")
    assert tasks.task_count == document["task_count"][0] == 16
    assert run(["import", str(tmp_path / "a.bin")]) == 0
    assert "burst 3: 4096 bytes per producer" in capfd.readouterr().out
    assert run(["import", str(tmp_path / "none.bin"), "--json"]) == 2
    assert "no such file" in json.loads(capfd.readouterr().out)["error"]
    assert run(["import", str(tmp_path / "a.bin"), "--out", str(tmp_path / "run")]) == 2
    assert "never overwrites" in capfd.readouterr().err
