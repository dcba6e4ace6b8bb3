"""The figure of results/h200-x2/moe, drawn from documents of the suite's form; nothing drawn here is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from suite_rows import suite_row, suite_stalls

ROOT = Path(__file__).parents[2]


def row(dtype: str, combine: str, stalls: bool, predicted: bool) -> dict[str, Any]:
    out = suite_row(dtype=dtype, combine=combine, tokens_per_rank=2048)
    out["predicted_ns"] = {"wave-2": 125_000.0, "interleaved-2": 99_000.0} if predicted else {}
    if stalls:
        out["stalls"] = suite_stalls((1.5, 2.25 if predicted else None), (0.25, 0.2 if predicted else None))
    return out


@pytest.mark.parametrize(("stalls", "predicted"), [(True, True), (True, False), (False, False)])
def test_it_is_drawn_with_and_without_stamps_and_model(tmp_path: Path, stalls: bool, predicted: bool) -> None:
    rows = [row(dtype, combine, stalls, predicted) for dtype in ("bf16", "fp8") for combine in ("bf16", "f32")]
    seen = {"captured": "2026-11-30T01:00:00+00:00", "nvml": {"driver": "580.1"}, "gpus": [{"name": "NVIDIA H200"}] * 2}
    document, forecast, picture = tmp_path / "moe.json", tmp_path / "forecast.json", tmp_path / "moe.png"
    document.write_text(json.dumps({"rows": rows, "environment": seen}))
    told = {
        "measured_us": 100.0,
        "predicted_us": 93.0,
        "predicted_given_alone_us": 98.0,
        "stall_measured_us": 1.5,
        "stall_predicted_us": 2.25,
    }
    kinds = [f"hy3|{dtype}|balanced|2048|{combine}" for dtype in ("bf16", "fp8") for combine in ("bf16", "f32")]
    forecast.write_text(json.dumps({"rows": [{"key": key, **told} for key in kinds]}))
    command = [
        sys.executable,
        "-W",
        "error::UserWarning",
        str(ROOT / "tools" / "moe_figures.py"),
        str(document),
        str(forecast),
        str(picture),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG"
