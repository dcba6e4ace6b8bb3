"""The host's numpy dtypes are the structs of the kernels, field by field, and its constants theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_code import struct_like, struct_of

from xstage_bench.device.cuda import footprint, layout, scene, tasks
from xstage_bench.io.assets import asset_dir

BURST = ("burst.cu", "readback.cuh")
SCENE = ("company.cu", "rendezvous.cuh")
TASKS = ("task_parts.cuh", "tensor_work.cuh")
STRUCTS = {
    BURST: {
        "Item": layout.ITEM, "Burst": layout.BURST, "Stamp": layout.STAMP, "Verdict": layout.VERDICT, "Control": layout.CONTROL,
        "Finding": layout.FINDING,
    },
    SCENE: {
        "Stream": scene.STREAM, "Seat": scene.SEAT, "Step": scene.STEP, "SceneStamp": scene.SCENE_STAMP, "Mail": scene.MAIL,
        "Control": scene.SCENE_CONTROL, "Repetition": scene.REPETITION,
    },
    TASKS: {"Task": tasks.TASK, "TaskStamp": tasks.TASK_STAMP, "List": tasks.LIST, "Seal": tasks.SEAL},
    ("footprint.cu",): {"Deal": footprint.DEAL, "Result": footprint.RESULT, "Meeting": footprint.MEETING, "Wrong": footprint.WRONG},
}  # fmt: skip
CONSTANTS = {
    SCENE: (
        f"MAX_STREAMS = {scene.MAX_STREAMS}", f"MAX_BURSTS = {scene.MAX_BURSTS}", f"MAX_ALL_BURSTS = {scene.MAX_ALL_BURSTS}",
        f"PULL_BULK = {scene.PULL_BULK},",
    ),
    TASKS: (
        f"MAX_SM_TASKS = {tasks.MAX_SM_TASKS};", f"EVENT_STRIDE = {tasks.EVENT_BYTES // 4};", "OPERAND_BYTES = (64 + 128) * 128;",
        *(f"#define {words} {i}" for i, words in enumerate(("XSTAGE_SPIN", "XSTAGE_MMA", "XSTAGE_WGMMA"))),
    ),
}  # fmt: skip


def text_of(files: tuple[str, ...]) -> str:
    return "".join((asset_dir("cuda") / name).read_text() for name in files)


@pytest.mark.parametrize(("files", "name", "dtype"), [(f, n, d) for f, known in STRUCTS.items() for n, d in known.items()])
def test_the_host_mirrors_the_struct(files: tuple[str, ...], name: str, dtype: np.dtype[Any]) -> None:
    assert struct_of(text_of(files), name) == struct_like(dtype)


@pytest.mark.parametrize("files", CONSTANTS)
def test_the_host_mirrors_the_constants(files: tuple[str, ...]) -> None:
    assert [words for words in CONSTANTS[files] if words not in text_of(files)] == []
