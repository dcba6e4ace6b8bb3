"""The pacer: its C++ and its Python agree, a question is three instructions, and on recorded schedules it is right about stalls."""

import re
import shutil
import subprocess
from pathlib import Path

import h200
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.device.cuda.compile import ARCHITECTURES, compile_kernel, compile_source
from xstage_bench.io.assets import asset_dir
from xstage_bench.model.document import Model, load_model
from xstage_bench.model.laws import balanced_accuracy
from xstage_bench.model.pacer import Pacer, answers
from xstage_bench.model.predict import predict_all
from xstage_bench.model.stage import stage_at
from xstage_bench.model.validate import STALLED_ABOVE
from xstage_bench.record.reader import Run, schedules_of
from xstage_bench.show.export import export_model
from xstage_bench.show.export.document import exported_model

RUN = h200.RUN
KERNEL = """
#include "model.cuh"
#include "xstage_pacer.cuh"
#define STAGE constexpr xstage::Stage stage = xstage::pair_0_1_st_v4::stage(132, 4)
extern "C" __global__ void ask(unsigned *out, int n) {
  STAGE;
  auto pacer = xstage::Pacer::start(stage);
  pacer.note(out[0]);
#pragma unroll 1
  for (int i = 0; i < n; ++i)
    if (pacer.would_stall(8192)) out[i] = 1;
}
extern "C" __global__ void pace(uint4 *to, int n) {
  STAGE;
  auto pacer = xstage::Pacer::start(stage);
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    if (pacer.would_stall(8192)) continue;
    pacer.note(8192);
    to[i] = uint4{};
    pacer.settle();
  }
}
"""
HOST = """
#include <cstdio>
#include "model.cuh"
#include "xstage_pacer.cuh"
int main() {
  int producers, warps;
  unsigned now, bytes;
  char what;
  if (scanf("%d %d %u", &producers, &warps, &now) != 3) return 1;
  const xstage::Stage stage = xstage::pair_0_1_st_v4::stage(producers, warps);
  xstage::Pacer pacer(stage, now);
  while (scanf(" %c %u %u", &what, &bytes, &now) == 3) {
    if (what == 'n') pacer.note(bytes, now);
    if (what == 's') pacer.settle(now);
    if (what == 'w') printf("%d %d %d %u %u\\n", pacer.would_stall(bytes, now), pacer.better_later(bytes, now),
                            pacer.room_cycles(bytes), pacer.backlog_bytes(now), pacer.wait_cycles(bytes, now));
  }
}
"""


@pytest.fixture(scope="module")
def header() -> str:
    return export_model(exported_model(RUN), "cuh")


@pytest.fixture(scope="module")
def host(header: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler for the CPU here")
    folder = tmp_path_factory.mktemp("pacer")
    (folder / "model.cuh").write_text(header)
    (folder / "main.cpp").write_text(HOST)
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{asset_dir('cuda')}"]
    subprocess.run([compiler, *flags, "-o", folder / "main", folder / "main.cpp"], check=True)
    return folder / "main"


def ask_host(host: Path, k: int, w: int, now: int, calls: list[tuple[str, int, int]]) -> list[list[int]]:
    words = f"{k} {w} {now % 2**32}\n" + "".join(f"{what} {size} {at % 2**32}\n" for what, size, at in calls)
    done = subprocess.run([host], input=words, capture_output=True, text=True, check=True)
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


steps = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 60_000), st.integers(0, 40_000), st.booleans()), min_size=1, max_size=12)


@given(steps=steps, start=st.integers(0, 2**33), k=st.sampled_from([8, 32, 132]))
@settings(max_examples=60, deadline=None)
def test_cpp_and_python_agree(host: Path, steps: list[tuple[int, int, int, bool]], start: int, k: int) -> None:
    """Over wraps of the 32-bit clock too: bursts of n steps, each so long after the one before, each taking so long."""
    stage = stage_at(load_model(RUN / "model.json"), k, 4)
    pacer, calls, expected, now = Pacer(stage, start), [], [], start
    for n, gap, took, settles in steps:
        size, now = n * stage.step_bytes, now + gap
        calls += [("w", size, now), ("n", size, now)]
        expected.append((bool(pacer.would_stall(size, now)), bool(pacer.better_later(size, now)), pacer.room_cycles(size)))
        pacer.note(size, now)
        now += took
        if settles:
            calls.append(("s", 0, now))
            pacer.settle(now)
    found = ask_host(host, k, 4, start, calls)
    for i, ((says, later, room), (cpp_says, cpp_later, cpp_room, backlog, wait)) in enumerate(zip(expected, found, strict=True)):
        assert cpp_room == pytest.approx(room, abs=2)
        ahead = backlog * stage.producers / stage.bytes_per_cycle
        if abs(ahead - room) > 20 + i and abs(room) > 2:
            assert (cpp_says, cpp_later) == (says, later)
        assert wait == pytest.approx(max(0.0, ahead - max(room, 0)), abs=20 + i)


def test_an_estimate_does_not_come_back_when_the_clock_wraps(host: Path) -> None:
    size = 16384
    calls = [("n", size, 1000), ("w", size, 1001), ("w", size, 1000 + 2**31), ("w", size, 2**32 - 2**27), ("w", size, 2**32 + 900)]
    assert [row[0] for row in ask_host(host, 132, 4, 0, calls)] == [1, 0, 0, 1]  # the last: a whole turn later, as the header says
    never = [("n", 1 << 20, 0), ("w", 1 << 20, 1), ("s", 0, 2), ("w", 1 << 20, 3)]
    assert [row[0] for row in ask_host(host, 1, 1, 0, never)] == [0, 0], "nothing stalls where nothing saturates"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_question_is_a_clock_read_an_addition_and_a_comparison(header: str, arch: str, sass_of) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin = compile_source(KERNEL, "ask.cu", arch, headers={"model.cuh": header})
    asked = question(sass_of(cubin, "ask"))
    assert 3 <= len(asked) <= 4, asked
    # Question, note, a store and settle, with the loop around them: no memory is touched but by the store, nothing is divided or converted.
    body = loop_of(sass_of(cubin, "pace"))
    assert len(body) <= 28, body
    assert sum("CLOCK" in line for line in body) == 3
    assert not [line for line in body if any(op in line for op in ("LDG", "LDL", "LDS", "STL", "STS", "MUFU", "CALL", "I2F", "F2I"))]


def loop_of(lines: list[str]) -> list[str]:
    """Return the instructions of the longest loop: from a label to a branch back to it."""
    at = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".L")}
    spans = [
        (at[m.group(1)], i) for i, line in enumerate(lines) if (m := re.search(r"BRA.*`\((\S+)\)", line)) and at.get(m.group(1), i) < i
    ]
    first, last = max(spans, key=lambda span: span[1] - span[0])
    return [line for line in lines[first : last + 1] if not line.startswith((".L", "NOP"))]


def question(lines: list[str]) -> list[str]:
    """Return what stands between the clock read of a loop and the predicate that it decides, as far as it needs the clock's value."""
    body = loop_of(lines)
    at = next(i for i, line in enumerate(body) if "CLOCK" in line)
    needed, out = set(re.findall(r"\bU?R\d+\b", body[at])[:1]), [body[at]]
    for line in body[at + 1 :]:
        target, *sources = re.findall(r"\bU?P\d\b|\bU?R\d+\b", re.sub(r"^@!?U?P\d ", "", line)) or [""]
        if needed & set(sources):
            out.append(line)
            needed.add(target)
            if "SETP" in line:
                return out
    raise AssertionError(f"no predicate depends on the clock: {body}")


def test_nvcc_takes_the_pacer_without_a_warning(header: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    (tmp_path / "model.cuh").write_text(header)
    (tmp_path / "ask.cu").write_text(KERNEL)
    options = ["-std=c++17", "-arch=sm_90a", f"-I{asset_dir('cuda')}", "-cubin", "-Werror", "all-warnings", "-o", "ask.cubin", "ask.cu"]
    done = subprocess.run(["nvcc", *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("work", ["0", "1"])
def test_the_kernel_that_asks_compiles(work: str, arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert compile_kernel("pacing.cu", arch, {"XSTAGE_COMPUTE": work})[:4] == b"\x7fELF"


def test_right_about_stalls_of_a_simulated_hold_out(quick_run: tuple[Run, Model]) -> None:
    """Producers of schedules that no fit has seen: balanced accuracy per producer and burst; that of recorded ones is a claim."""
    run, model = quick_run
    samples, producers = run.samples(), run.producers()
    schedules = schedules_of(samples[samples["probe"] == "holdout"])
    mine = producers[(producers["process"] == 0) & producers["schedule"].isin(list(schedules))]
    free = {k: p.t0_cycles for k, p in zip(schedules, predict_all(model, list(schedules.values())), strict=True)}
    measured: list[np.ndarray] = []
    said: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for key, rows in mine.groupby("schedule"):
        s = schedules[str(key)]
        issue, start = (
            rows.pivot(index="burst", columns="producer", values=name).to_numpy(dtype=np.float64) for name in ("issue_cycles", "start_ns")
        )
        start = start * (model.sm_clock_mhz / 1e3)
        stage = stage_at(model, s.producer_count, s.warps)
        measured.append((issue > STALLED_ABOVE * free[str(key)][:, None]).ravel())
        for settle, out in said.items():
            found = answers(stage, [b.bytes for b in s.bursts], start, start + issue, settle=settle, isolated=s.start == "isolated")
            out.append(found.ravel())
    truth = np.concatenate(measured)
    with_settle, without = (balanced_accuracy(truth, np.concatenate(said[x])) for x in (True, False))
    assert truth.size > 20_000
    assert with_settle > 0.88
    assert 0.80 < without < with_settle - 0.02
