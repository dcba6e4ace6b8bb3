"""What a recording says of its instrument: one kernel's own text, its macros, the compiler and the architecture."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xstage_bench.device.backend import BackendChoice
from xstage_bench.device.cuda.compile import compile_kernel, compiled, newly_compiled, sources_hash
from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.device.cuda.variant import OWN_FLAVOUR, Variant
from xstage_bench.errors import PairError
from xstage_bench.io.assets import asset_dir
from xstage_bench.io.identity import Kernel, compiler_version, in_tree, kernel_identity, kernel_of, merged, sources_of, without_comments
from xstage_bench.kernels.session import results
from xstage_bench.measure.copies import measure_copies
from xstage_bench.measure.scenes import measure_scenes
from xstage_bench.measure.tasks import measure_tasks
from xstage_bench.measure.visibility import measure_visibility
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Gpu, Node, kernels_of
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.scenes import Scene
from xstage_bench.schedule.trace import Trace
from xstage_bench.workloads.moe import moe_tasks

FLAVOUR = {"XSTAGE_FLAVOUR": "st_v4"}


def identity(source: str = "burst.cu", arch: str = "sm_90", compiler: str = "NVRTC 13.0.88", **defines: str) -> str:
    return kernel_identity(source, arch, defines, compiler=compiler)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of cuda/ that may be edited."""
    shutil.copytree(asset_dir("cuda"), tmp_path / "cuda")
    for module in ("io.identity", "device.cuda.compile"):
        monkeypatch.setattr(f"xstage_bench.{module}.asset_dir", lambda name: tmp_path / name)
    return tmp_path / "cuda"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_what_a_kernel_includes_counts_and_nothing_else(tree: Path) -> None:
    before = {name: identity(name) for name in ("burst.cu", "moe.cu", "pacing.cu")}
    tree_hash = sources_hash()

    def changed() -> set[str]:
        return {name for name in before if identity(name) != before[name]}

    (tree / "stamps.cuh").write_text("// one more\n\n/* and\n another */" + (tree / "stamps.cuh").read_text())
    assert changed() == set(), "comments do not count"
    assert sources_hash() != tree_hash
    edit(tree / "moe.cu", "#include", '__device__ int added;\n#include "pattern.cuh"\n#include')
    assert changed() == {"moe.cu"}
    assert "xstage_stage.cuh" in sources_of("pacing.cu")  # behind the #ifndef of xstage_pacer.cuh
    edit(tree / "xstage_pacer.cuh", "#define XSTAGE_PACER", "#define XSTAGE_PACER 1")
    assert changed() >= {"moe.cu", "pacing.cu"}
    assert "burst.cu" not in changed()
    edit(tree / "flavours.cuh", "#ifndef XSTAGE_FLAVOUR", "#define ADDED 1\n#ifndef XSTAGE_FLAVOUR")
    assert "burst.cu" in changed()  # three includes away


def test_macros_architecture_and_compiler_count() -> None:
    more = (
        {},
        {"arch": "sm_100"},
        {"compiler": "NVRTC 13.0.89"},
        {"XSTAGE_TIMELINE": "1"},
        {"XSTAGE_TIMELINE": "2"},
        {"source": "verify.cu"},
    )
    assert len({identity(**words) for words in more}) == 6
    assert identity(A="1", B="2") == identity(B="2", A="1")


@pytest.mark.parametrize(
    ("code", "bare"),
    [
        ('f("// no comment"); // one', 'f("// no comment");'),
        ('asm("a /* b */ c");/* d */g();', 'asm("a /* b */ c"); g();'),
        ("char c = '\"'; // \"\nx", "char c = '\"';\nx"),
        ("// goes on \\\n  here\nx", "x"),
        ("a /* b\n c */ d", "a   d"),
        ('auto s = R"(// text)"; // kept', 'auto s = R"(// text)"; // kept'),
        ("int i = 1'000; // kept", "int i = 1'000; // kept"),
        ("int i = __LINE__;\n// kept\n", "int i = __LINE__;\n// kept\n"),
    ],
)
def test_what_a_comment_is(code: str, bare: str) -> None:
    assert without_comments(code) == bare


def test_a_flavour_of_the_users_own_counts_and_is_in_no_tree() -> None:
    variant = Variant(replace(FLAVOURS["st.v4"], function="mine", source='#include "pattern.cuh"\nint a;'))
    mine = kernel_of("burst.cu", "sm_90", variant.defines(), variant.headers())
    other = kernel_of("burst.cu", "sm_90", variant.defines(), {OWN_FLAVOUR: "int b;"})
    assert mine.own
    assert mine.identity not in {other.identity, kernel_of("burst.cu", "sm_90", variant.defines()).identity}
    assert not in_tree(mine)


def test_a_recording_is_looked_up_in_a_tree_by_its_own_compiler(tree: Path) -> None:
    recorded = Kernel(
        source="burst.cu", arch="sm_90", compiler="NVRTC 12.0.1", identity=identity(compiler="NVRTC 12.0.1", **FLAVOUR), defines=FLAVOUR
    )
    assert in_tree(recorded)
    assert not in_tree(replace(recorded, defines={}))
    assert not in_tree(replace(recorded, source="gone.cu"))
    edit(tree / "issue.cuh", "#include", "#define ADDED 1\n#include")
    assert not in_tree(recorded)


def test_a_compiled_kernel_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XSTAGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("xstage_bench.device.cuda.compile._COMPILED", {})
    monkeypatch.setattr("xstage_bench.device.cuda.compile._told", 0)
    for _ in range(2):  # the second from the cache
        compile_kernel("verify.cu", "sm_90")
    (kernel,) = compiled()
    assert kernel == kernel_of("verify.cu", "sm_90")
    assert kernel.compiler == compiler_version()
    assert [p.name for p in tmp_path.rglob("*.cubin")] == [f"verify-sm_90-{kernel.identity}.cubin"]
    assert newly_compiled() == [kernel]
    compile_kernel("verify.cu", "sm_80")
    assert [k.arch for k in newly_compiled()] == ["sm_80"]
    assert newly_compiled() == []


def test_a_device_collects_what_its_worker_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (kernel_of("burst.cu", "sm_90", {"N": n}) for n in "12")
    answers = iter([("ok", 1, [first]), ("ok", 2, []), ("ok", 3, [second, first])])
    device = CudaDevice()
    monkeypatch.setattr(device, "_pipe", SimpleNamespace(poll=lambda seconds: True, recv=lambda: next(answers)))
    assert [device._receive(0, 1, 0.0) for _ in range(3)] == [1, 2, 3]
    assert kernels_of(device) == [first, second] == merged([first], [second, first])
    assert kernels_of(object()) == []


def _work(job: dict[str, object], send: object) -> None:
    compile_kernel("verify.cu", "sm_90")
    send("row", 1)  # type: ignore[operator]
    send("row", 2)  # type: ignore[operator]


def test_a_fused_process_sends_its_kernels_before_what_they_measured() -> None:
    sent = list(results(_work, {}))
    assert sent == [("kernels", [kernel_of("verify.cu", "sm_90")]), ("row", 1), ("row", 2)]


class _Compiling:
    """A device that compiles another kernel in each process, and can do nothing else."""

    backend = "cuda"

    def __init__(self, process: int) -> None:
        self.process = process

    def kernels(self) -> list[Kernel]:
        return [kernel_of("burst.cu", "sm_90"), kernel_of("burst.cu", "sm_90", {"PROCESS": str(self.process)})]

    def node(self) -> Node:
        gpus = tuple(Gpu(i, "NVIDIA H200", tuple(range(132)), 1980.0) for i in range(2))
        return Node(gpus, ((0, 1),), 32.0, flavours=("st.v4",))

    def fail(self, *arguments: object, **options: object) -> Any:
        raise PairError("pair 0>1: nothing can be measured here")

    verify = watch = copy = measure_scene = execute_tasks = fail

    def measure(self, executions: object) -> Iterator[Trace]:
        raise PairError("pair 0>1: nothing can be measured here")
        yield

    def close(self) -> None: ...


def test_documents_carry_the_kernels_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = BackendChoice("cuda", "test", False)
    monkeypatch.setattr("xstage_bench.device.backend.open_device", lambda choice, *, seed, process: _Compiling(process))
    push = Scene((Schedule((Burst(4096),), 2),))
    layer = moe_tasks("keye-vl-2", tokens_per_rank=512, ep=8, dtype="bf16")
    documents = [
        measure_visibility(_Compiling, [(0, 1)], processes=2),
        measure_copies(_Compiling, [(0, 1)], processes=2),
        measure_scenes(choice, lambda node: [push], processes=2),
        measure_tasks(choice, [layer], compute="spin", processes=2, instrument=False),
    ]
    wanted = [asdict(k) for k in merged(_Compiling(0).kernels(), _Compiling(1).kernels())]
    assert len(wanted) == 3
    assert [json.loads(json.dumps(d["kernels"])) for d in documents] == [wanted] * len(documents)
