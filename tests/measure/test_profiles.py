"""What ncu, nsys, PyTorch and Proton write is read; what is spoiled is refused in one line. Forms as of their sources and public logs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import DataError, UsageError, XStageError
from xstage_bench.measure.profiles.kernels import KernelRun, timing_of
from xstage_bench.measure.profiles.read import TimeLineWords, kernels_in, read_profile, time_line_of

HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
CELLS = '"python3","node","push<float, 128>(int)","1","7","(128, 1, 1)","(132, 2, 1)","0","9.0"'
LONG = f"""tuning ...
==PROF== Profiling "push" - 0: 0%....50%....100% - 9 passes
{HEAD},"Section Name","Metric Name","Metric Unit","Metric Value"
"0","1",{CELLS},"Speed Of Light","Memory Throughput","%","80.5"
"0","1",{CELLS},"Speed Of Light","Duration","us","1,205.00"
"1","1",{CELLS},"Command line profiler metrics","gpu__time_duration.sum","nsecond","1,215,000"
==PROF== Disconnected from process 1
"""
RAW = f"""{HEAD},"dram__bytes_read.sum","gpu__time_duration.sum"
"","","","","","","","","","","","byte","us"
"0","1",{CELLS},"2,000","1205"
"1","1",{CELLS},"2,000","1215"
"""
SYSTEMS = """Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Name
10,1205000,7,132,2,1,128,1,1,"push<float, 128>(int)"
20,99,7,,,,,,,[CUDA memcpy HtoD]
30,1215000,7,132,2,1,128,1,1,"push<float, 128>(int)"
"""
KERNEL = {"ph": "X", "cat": "kernel", "name": "push<float, 128>(int)", "pid": 0, "tid": 7, "args": {"grid": [132, 2, 1], "stream": 7}}
TORCH = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 42, "tid": 42, "ts": 1.5, "dur": 7.0},
        {**KERNEL, "ts": 10.0, "dur": 1205.0},
        {**KERNEL, "ts": 5000.0, "dur": 1215.0},
        {"ph": "M", "name": "process_name", "pid": 42, "args": {"name": "python"}},
    ],
}


@pytest.mark.parametrize(
    "text", [LONG, RAW, SYSTEMS, json.dumps(TORCH), json.dumps(TORCH["traceEvents"])], ids=["long", "raw", "nsys", "torch", "list"]
)
def test_the_same_launches_in_every_form(text: str, tmp_path: Path) -> None:
    (tmp_path / "p").write_text(text)
    runs = kernels_in(read_profile(tmp_path / "p"))
    assert runs == [KernelRun("push<float, 128>(int)", ns, 264) for ns in (1205e3, 1215e3)]
    timing = timing_of(runs, None, tmp_path / "p", "--kernel")
    assert (timing.duration_ns, timing.launches, timing.blocks) == (1210e3, 2, 264)
    assert timing.noise == pytest.approx(5 / 1210)


def test_a_kernel_is_named_or_found_by_its_name() -> None:
    runs = [KernelRun("gemm_local", 1.0), KernelRun("gemm_remote", 2.0), KernelRun("gemm_remote", 4.0), KernelRun("copy", 9.0)]
    assert timing_of(runs, None, Path("t"), "--kernel", "remote").duration_ns == 3.0
    assert timing_of(runs, "copy", Path("t"), "--kernel").name == "copy"
    for wanted, words in (
        ("gemm", "2 kernels whose name holds 'gemm': gemm_local, gemm_remote"),
        ("x", "no kernel"),
        (None, "4|3 kernels"),
    ):
        with pytest.raises(UsageError, match=words):
            timing_of(runs, wanted, Path("t"), "--kernel")


def proton(sms: int = 3, tiles: int = 4, warps: int = 2, ctas: int = 1) -> dict[str, object]:
    """A time line as Proton's writer makes it: a process for each CTA, a thread for each warp, thousands of cycles as the unit."""
    events = []
    for sm in range(sms):
        for cta in range(sm, sms * ctas, sms):
            for warp in range(warps):
                track = {"pid": f"push Core{sm} CTA{cta} [measure in clock cycle (assume 1GHz)]", "tid": f"warp {warp} (line 0)"}
                for t in range(tiles):
                    for name, at, dur in (("mma", 10_000 * t, 6000), ("epilogue store", 10_000 * t + 6000, 3000 + warp)):
                        more = {"ph": "X", "cat": "push", "cname": "good", "args": {"Unit": "GPU cycle"}}
                        events.append({**track, **more, "name": name, "ts": at / 1000, "dur": dur / 1000})
    return {"displayTimeUnit": "ns", "traceEvents": events}


WORDS = TimeLineWords(tile_bytes=8192, sm_clock_mhz=2000.0)


@pytest.mark.parametrize("ctas", [1, 2])
def test_a_time_line_inside_a_kernel_becomes_tasks(ctas: int, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(proton(ctas=ctas)))
    profile = read_profile(tmp_path / "p.json")
    assert kernels_in(profile) is None
    trace = time_line_of(profile, tmp_path / "p.json", WORDS, pair="0>1", flavour="st.v4")
    assert (trace.schedule.producer_count, trace.schedule.task_count, trace.schedule.warps) == (3, 12 * ctas, 2)
    assert set(trace.schedule.remote_bytes.tolist()) == {8192}
    np.testing.assert_allclose((trace.store_end_ns - trace.compute_end_ns), 3001 / 2, rtol=1e-9)
    np.testing.assert_allclose((trace.compute_end_ns - trace.start_ns)[0], 3000, rtol=1e-9)


def read_all(path: Path) -> None:
    """Read a profile as far as a diagnosis does."""
    profile = read_profile(path)
    runs = kernels_in(profile)
    if runs is None:
        time_line_of(profile, path, WORDS, pair="0>1", flavour="st.v4")
    else:
        timing_of(runs, None, path, "--kernel")


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        (json.dumps(TORCH)[:-30], "no whole trace", DataError),
        ('{"traceEvents": []}', "none of its 0 events", DataError),
        ('{"traceEvents": [{"ph": "X", "name": "k", "ts": 0, "dur": -1}]}', "a duration of -1", DataError),
        ('{"traceEvents": [{"ph": "X", "name": "k", "ts": "soon"}]}', "no whole trace", DataError),
        ("", "is empty", DataError),
        ("a,b\n1,2\n", "has no duration of a kernel: its columns are a, b", DataError),
        (RAW[:-12], "line 4: unexpected end of data", DataError),
        (RAW.replace(',"1215"', ""), "line 4: 12 cells, the header has 13", DataError),
        (RAW.replace('"1205"', '"soon"'), "'soon' of unit 'us' is no duration", DataError),
        (SYSTEMS.replace("1205000", "nan"), "a duration of nan", DataError),
        (json.dumps(proton()).replace("Core1", "Kern1"), "is none of Proton's", DataError),
        (json.dumps(proton()).replace("epilogue store", "tail"), "has no scope of stores: mma, tail", UsageError),
        (json.dumps(proton()).replace('"dur": 6.0', '"dur": 7.0'), "scopes of one warp overlap", DataError),
    ],
)
def test_what_is_spoiled_is_refused(text: str, words: str, error: type[XStageError], tmp_path: Path) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(error) as refused:
        read_all(tmp_path / "p")
    assert words in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("any") / "p"
    whole = data.draw(st.sampled_from([LONG, RAW, SYSTEMS, json.dumps(TORCH), json.dumps(proton(2, 2, 1))])).encode()
    at = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + data.draw(st.integers(0, 40)) :])
    with contextlib.suppress(UsageError, DataError):
        read_all(path)
