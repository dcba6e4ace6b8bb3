"""The figure of docs/moe.md, drawn from documents of the suite's form; nothing drawn here is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def row(dtype: str, combine: str, stalls: bool = True, predicted: bool = True) -> dict[str, Any]:
    us = {"wave 2": 130.0, "wave 4": 120.0, "wave alone": 90.0, "chosen": 100.0, "chosen alone": 95.0, "chosen local": 97.0}
    out: dict[str, Any] = {
        "shape": "hy3",
        "dtype": dtype,
        "combine": combine,
        "routing": "balanced",
        "tokens_per_rank": 2048,
        "ep": 8,
        "emulated": True,
        "chosen": "interleaved-2",
        "predicted_ns": {"wave-2": 125_000.0, "interleaved-2": 99_000.0} if predicted else {},
        "variants": {name: {"arrived_us": {"value": value}} for name, value in us.items()},
        "unfused_us": None,
        "drain_us": 60.0,
        "flops": 10**12,
    }
    if stalls:
        span = {"store_span_us": {"median": 3.2, "p90": 5.1}, "between_us": 1.5, "within_us": 0.4, "idle_us": 2.0, "idle_without_us": 0.5}
        out["stalls"] = {
            "wave": {"order": "wave-2", "measured_us": 1.5, "predicted_us": 2.25 if predicted else None, **span},
            "chosen": {"order": "interleaved-2", "measured_us": 0.25, "predicted_us": 0.2 if predicted else None, **span},
        }
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
