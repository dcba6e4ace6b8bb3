"""The situations that users of neighbouring tools have met, by number: results/h200-x2/robustness says what this tool does.

Each is tested here as the kind of fault; many have more tests where they belong.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_cuda
import nodes
import numpy as np
import pytest

import xstage_bench.measure.bursts as runner
from xstage_bench.device.backend import BackendChoice, resolve_backend
from xstage_bench.device.sim import SimDevice
from xstage_bench.device.sim.faults import Faults
from xstage_bench.errors import DataError, UsageError, WaivedError, XStageError
from xstage_bench.io.json_file import encode_json
from xstage_bench.judge.check import criticise
from xstage_bench.judge.compare import Side, compare
from xstage_bench.judge.fleet.outliers import judge
from xstage_bench.machine.doctor import can_measure, examine
from xstage_bench.machine.environment import snapshot
from xstage_bench.machine.topology import matrix, read_topology
from xstage_bench.measure.plan import Options, make_plan
from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.run_fit import fit_run, usable_samples
from xstage_bench.record.columns import SAMPLES
from xstage_bench.record.manifest import load_manifest, save_manifest
from xstage_bench.record.reader import Run, load_run
from xstage_bench.schedule.burst_files import load_bursts
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Gpu, Node

ROOT = Path(__file__).parent.parent
SIM = BackendChoice("sim:h200-nv18-x2", "test", True)
H200_DOWN = list(range(18))


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: Faults, only: tuple[str, ...] = ("timer",), **more: Any) -> Run:
    """Run on a simulated node with faults, all else as `xstage run`."""
    monkeypatch.setattr(runner, "open_device", lambda choice, *, seed, process: SimDevice(seed=seed, process=process, faults=faults))
    return runner.record_run(Options(SIM, quick=True, only=only, **more), tmp_path / "run", ["xstage", "run"])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Run:
    options = Options(SIM, pairs=((0, 1),), quick=True, only=("isolated",))
    return runner.record_run(options, tmp_path_factory.mktemp("cases") / "run", ["xstage", "run"])


WRONG_BYTE = "pair 0>1: destination byte 0x[0-9a-f]+ holds 0x[0-9a-f]+, expected 0x[0-9a-f]+"


@pytest.mark.parametrize(
    ("faults", "pair", "words"),
    [
        pytest.param(Faults(dropped=((0, 1),)), (0, 1), WRONG_BYTE, id="case_01"),
        pytest.param(Faults(hanging=((1, 0),)), (1, 0), "no progress within the time-out", id="case_02"),
        pytest.param(Faults(error_after=100), (1, 0), "GPU 1 reported", id="case_04"),
    ],
)
def test_a_pair_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: Faults, pair: tuple[int, int], words: str) -> None:
    """1: stores that are lost. 2: an operation that never completes. 4: an error in the middle keeps what was measured."""
    run = measured(tmp_path, monkeypatch, faults)
    ((name, reason),) = run.manifest.failed_pairs.items()
    assert name == f"{pair[0]}>{pair[1]}"
    assert re.search(words, reason)
    assert run.manifest.complete
    assert set(usable_samples(run)["source"]) == {pair[1]}, "the other pair is finished, and no number of this one is used"
    assert len(load_run(run.folder).samples()) >= 100


def test_case_03_no_memory_of_an_asynchronous_pool_is_ever_a_destination() -> None:
    sources = "".join(p.read_text() for p in (ROOT / "xstage_bench").rglob("*.py"))
    assert "runtime.malloc(" in sources
    assert not re.search("mallocAsync|MemoryAsyncPool|malloc_async|mallocFromPoolAsync", sources)


@pytest.mark.parametrize("spec", ["auto", "cuda"])
def test_case_05_links_down(fake_nvml: Any, spec: str) -> None:
    nvml = fake_nvml()
    nvml.gpus[0]["links"]["down"] = H200_DOWN
    topology = read_topology(nvml, {}, bus=lambda: [])
    assert topology.usable_pairs() == ()
    assert "0 of 18 NVLinks are up" in topology.why_not()
    with pytest.raises(WaivedError):
        resolve_backend(spec, "gpu", topology=lambda: topology, has_cupy=lambda: True)
    assert not can_measure(examine(topology, snapshot(nvml, {}), has_cupy=True))
    card = read_topology(fake_nvml(nodes.nodes()["PCIe only"]), {}, bus=lambda: [])
    assert len(card.usable_pairs()) == 12, "a card without NVLink by design is no failure"


def test_case_06_mixed_links_and_one_slow_pair(fake_nvml: Any) -> None:
    topology = read_topology(fake_nvml(nodes.nodes()["mixed"]), {}, bus=lambda: [])
    assert {cell for row in matrix(topology) for cell in row} == {"-", "NV1", "NV2", "none!"}
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    rates = np.array([150.0 if pair == (2, 1) else 300.0 for pair in pairs])
    found = judge(np.zeros(12, dtype=np.int64), *(np.array(c) for c in zip(*pairs, strict=True)), rates)
    assert found is not None
    assert {(o.source, o.destination) for o in found.outliers if o.level == "link"} == {(2, 1)}


def test_case_07_peers_that_a_container_hides(fake_nvml: Any) -> None:
    nvml = fake_nvml(nodes.nodes()["mixed"])
    topology = read_topology(nvml, {"CUDA_VISIBLE_DEVICES": "0"}, bus=lambda: [])
    assert any("NVLinks to a GPU at 0000:18:00.0 that is not visible here" in note for note in topology.notes)
    assert any(f.status == "warn" and f.check == "visible GPUs" for f in examine(topology, snapshot(nvml, {}), has_cupy=True))
    with pytest.raises(WaivedError, match="only one GPU is visible"):
        resolve_backend("auto", "gpu", topology=lambda: topology, has_cupy=lambda: True)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"mig": [1, 1]}, "nvidia-smi -mig 0"),
        ({"fabric_state": 2}, "nvidia-fabricmanager"),
        ({"confidential": 1}, "switch it off on the host"),
    ],
)
def test_case_08_modes_that_forbid_peer_stores(fake_nvml: Any, change: dict[str, Any], word: str) -> None:
    nvml = fake_nvml()
    nvml.node["confidential_computing"] = change.pop("confidential", 0)
    nvml.gpus[0].update(change)
    topology = read_topology(nvml, {}, bus=lambda: [])
    assert topology.usable_pairs() == ()
    assert word in topology.why_not()


@pytest.mark.parametrize(("shown", "order"), [("1,0", [1, 0]), ("GPU-2", [1]), ("0", [0]), (None, [0, 1])])
def test_case_09_gpus_are_joined_by_identity(fake_nvml: Any, shown: str | None, order: list[int]) -> None:
    environ = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    nvml = fake_nvml()
    uuids = [g["uuid"] for g in nvml.gpus]
    topology = read_topology(nvml, environ, bus=lambda: [])
    assert [g.uuid for g in topology.gpus] == [uuids[i] for i in order]
    indices = {g["uuid"]: g["index"] for g in snapshot(nvml, environ)["gpus"]}
    assert [indices[uuids[i]] for i in order] == list(range(len(order)))


def test_case_10_peer_access_enabled_twice_and_kernels_loaded_before_anything_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    from xstage_bench.device.cuda import worker

    monkeypatch.setenv("CUDA_MODULE_LOADING", "")
    monkeypatch.delenv("CUDA_MODULE_LOADING")
    cuda = fake_cuda.install(monkeypatch)
    pipe: Any = SimpleNamespace(said=[], send=lambda answer: pipe.said.append(answer), recv=lambda: (_ for _ in ()).throw(EOFError))
    for _ in range(2):
        worker.main(pipe)
    assert [said[0] for said in pipe.said] == ["ok", "ok"], "access that is there already is no error"
    assert pipe.said[0][1]["pairs"] == [(0, 1), (1, 0)]
    assert cuda.reached == {(0, 1), (1, 0)}, "each direction is enabled from its own source"
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    loaded = {(gpu, name) for _, gpu, name in cuda.did("function")}
    assert loaded >= {(gpu, f"xstage_{name}") for gpu in (0, 1) for name in ("burst", "consume", "poison", "untouched")}


def test_case_11_another_process_is_busy_and_ours_is_not(fake_nvml: Any) -> None:
    nvml = fake_nvml()
    nvml.gpus[0]["processes"] = [{"pid": 4194301, "usedGpuMemory": 1}, {"pid": os.getpid(), "usedGpuMemory": 2}]
    found = examine(read_topology(nvml, {}, bus=lambda: []), snapshot(nvml, {}), has_cupy=True)
    (warned,) = (f for f in found if f.status == "warn")
    assert warned.check == "GPU 0 users"
    assert "4194301" in warned.detail
    assert str(os.getpid()) not in warned.detail


def test_case_12_more_producers_than_sms() -> None:
    h20 = Node(tuple(Gpu(i, "NVIDIA H20", tuple(range(78)), 1980.0) for i in range(2)), ((0, 1), (1, 0)), 32.0)
    with pytest.raises(UsageError, match="132 producers asked for, but GPU 0 has 78 SMs"):
        make_plan(h20, Options(SIM, schedules=(Schedule((Burst(512),), 132),)))
    most = max(i.schedule.producer_count for items in make_plan(h20, Options(SIM, quick=True)).pairs.values() for i in items)
    assert most == 78


def test_case_13_first_operations_are_kept_marked_and_enter_no_fit(sound: Run) -> None:
    samples = sound.samples()
    warm = samples["status"] == "warmup"
    assert 40 < warm.sum() < len(samples)
    with_them = fit_run(sound, resamples=20)
    without = calibrate(samples[~warm], backend=with_them.backend, gpu=with_them.gpu, sm_clock_mhz=with_them.sm_clock_mhz, resamples=20)
    assert without.pairs[0].burst_gap == with_them.pairs[0].burst_gap
    assert fit_run(sound, resamples=20, workers=1) == with_them, "in a process of its own, from the files, the same"


def test_case_14_every_sample_throttled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = measured(tmp_path, monkeypatch, Faults(throttle_after=0), only=("isolated",), pairs=((0, 1),))
    model = fit_run(run, resamples=20)
    numbers = [n for e in model.pairs[0].burst_gap for n in (e.t0_cycles, e.drain_gb_per_s, e.capacity_bytes)]
    assert numbers
    assert {(n.value, n.status) for n in numbers} == {(None, "not_identified")}
    assert "no valid samples" in {n.reason for n in numbers}
    assert any(f.status == "fail" and "no valid one" in f.detail for f in criticise(run, model))


def test_case_15_runs_that_differ_have_wide_intervals_and_are_told_to_measure_more(sound: Run) -> None:
    samples = sound.samples()
    for column in ("issue_mean_cycles", "issue_max_cycles", "makespan_ns"):
        samples[column] *= samples["process"].map({0: 0.92, 1: 1.0, 2: 1.08}).to_numpy()
    model = calibrate(samples, backend="sim", gpu="x", sm_clock_mhz=1980.0, resamples=20)
    spread = SimpleNamespace(folder=sound.folder, manifest=sound.manifest, samples=lambda: samples, changed=list)
    found = {f.check: f for f in criticise(spread, model) if f.status == "warn"}
    assert "too few samples" in (found["pair 0>1 R"].hint or "")
    assert "fresh processes differ by 8" in found["spread between processes"].detail


def test_case_16_how_good_is_that(sound: Run) -> None:
    from xstage_bench.show.report import render_report

    page = render_report(sound, fit_run(sound, resamples=20), None, drawn=[])
    for words in ("raw link", "478", "payload limit", "427", "nominal", "450", "copy engine", "396", "reference node", "achieved"):
        assert words in page, words


def test_case_17_one_unit_in_every_name() -> None:
    names = [c.name for c in SAMPLES]
    for path in (ROOT / "results" / "schemas").glob("*.json"):
        names += re.findall(r'"([a-z][a-z0-9_]*)":', path.read_text())
    assert not [n for n in names if re.search(r"gib|mib|kib|_gbps|_mb_per|(^|_)gb($|_(?!per_s))", n)]
    assert {"drain_gb_per_s", "capacity_bytes", "line_rate_gb_per_s"} <= set(names)


def test_case_18_identical_code_is_no_regression(sound: Run) -> None:
    """The experiment is in tests/judge/test_compare.py, its large version in tests/claims/compare_false_alarms.py."""
    model = fit_run(sound, resamples=40)
    assert compare(Side("a", model, None), Side("b", model, None)).verdict == "same"


def test_case_19_a_sweep_that_never_saturates_has_no_capacity(sound: Run) -> None:
    samples = sound.samples()
    short = samples[(samples["bytes"] <= 8192) & (samples["producers"] == 132)]
    model = calibrate(short, backend="sim", gpu="x", sm_clock_mhz=1980.0, resamples=20)
    for entry in model.pairs[0].burst_gap:
        assert entry.capacity_bytes.status == "not_identified"
        assert entry.capacity_bytes.value is None
        assert entry.capacity_bytes.reason


def test_case_20_a_second_knee_and_a_sleeping_link_are_called_out(sound: Run) -> None:
    samples = sound.samples()
    isolated = (samples["probe"] == "isolated") & (samples["kind"] == "measure")
    samples["issue_mean_cycles"] += np.where(isolated, 0.5 * np.maximum(samples["bytes"] - 200_000, 0), 0.0)
    samples.loc[samples.index[isolated][::40], "issue_mean_cycles"] += 150 * 1980.0
    damaged = SimpleNamespace(manifest=sound.manifest, samples=lambda: samples, changed=list)
    found = {f.check: f.detail for f in criticise(damaged, None) if f.status == "warn"}
    assert "in the largest bursts" in found["second knee"]
    assert "late by more than 30 us" in found["link sleep"]


def test_case_21_strict_json_both_ways(tmp_path: Path, sound: Run) -> None:
    text = encode_json({"a": float("nan"), "b": [float("inf"), 1.5]}).decode()
    assert json.loads(text, parse_constant=lambda word: pytest.fail(word)) == {"a": None, "b": [None, 1.5]}
    for value in ("NaN", "Infinity", '"N/A"', '"1.5"'):
        bad = (sound.folder / "manifest.json").read_text().replace('"timer_tick_ns": 32.0', f'"timer_tick_ns": {value}')
        (tmp_path / "manifest.json").write_text(bad)
        with pytest.raises(DataError):
            load_manifest(tmp_path)


def test_case_22_a_failure_is_an_exit_code_and_waived_is_not_passed(fake_nvml: Any) -> None:
    from xstage_bench.cli.output import Output
    from xstage_bench.cli.run import pair_status

    failed = SimpleNamespace(manifest=SimpleNamespace(failed_pairs={"0>1": "lost"}))
    assert pair_status(Output(), failed) == 1  # type: ignore[arg-type]
    nvml = fake_nvml(library=False)
    findings = examine(read_topology(nvml, {}, bus=lambda: []), snapshot(nvml, {}), has_cupy=True)
    assert [f.status for f in findings] == ["waived"]
    assert not can_measure(findings)
    assert {e("x").exit_code for e in (UsageError, DataError, WaivedError)} == {2, 1, 3}


def test_case_23_no_secret_of_the_environment_is_recorded(fake_nvml: Any) -> None:
    facts = snapshot(fake_nvml(), {"AWS_SECRET_ACCESS_KEY": "hunter2", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/home/alice"})
    assert not re.search("hunter2|alice", json.dumps(facts))
    assert facts["variables"]["CUDA_VISIBLE_DEVICES"] == "0"


def test_case_24_a_run_is_never_overwritten(sound: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (sound.folder / "manifest.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"not empty|it is complete"):
            runner.record_run(Options(SIM, quick=True, only=("timer",)), sound.folder, ["xstage"], resume=resume)
    assert (sound.folder / "manifest.json").read_bytes() == before


def test_case_25_offline_verbs_need_no_cuda_no_cupy_and_no_display() -> None:
    script = (
        "import sys\nfor name in ('cupy', 'cuda', 'pynvml'): sys.modules[name] = None\n"
        "from xstage_bench.cli import run\nfrom xstage_bench.cli.group import VERBS\n"
        "assert all(run([verb, '--help']) == 0 for verb in VERBS)\n"
        "import xstage_bench.profile, xstage_bench.judge.compare, xstage_bench.judge.check, xstage_bench.judge.limits\n"
        "import xstage_bench.show.fleet_page"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120, env={"PATH": "/usr/bin"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", [0, 99])
def test_case_26_another_schema_version_is_refused_with_the_way_out(sound: Run, tmp_path: Path, version: int) -> None:
    save_manifest(tmp_path, dataclasses.replace(load_manifest(sound.folder), schema_version=version))
    with pytest.raises(DataError, match=f"schema version {version}") as error:
        load_manifest(tmp_path)
    assert error.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x00\xff\x00", b"bytes\n", b"producers,warps\n1,1\n", b"burst,bytes,gap_cycles\n0,512,-1\n", b"burst,bytes\n0,513\n",
        b'{"schema_version": 1, "schedules": [{"bursts": [{"bytes": 512}], "producers": 1, "flavour": "st.v9"}]}',
    ],
)  # fmt: skip
def test_case_27_schedule_files_that_are_none(tmp_path: Path, content: bytes) -> None:
    for name in ("schedule.json", "schedule.csv"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(XStageError) as error:
            load_bursts(tmp_path / name)
        assert error.value.hint
    with pytest.raises(XStageError):
        load_bursts(tmp_path)
