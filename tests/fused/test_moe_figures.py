"""The figure and the table of docs/moe.md, drawn from documents of the suite's form; nothing drawn here is kept."""

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


def draw(rows: list[dict[str, Any]], folder: Path) -> str:
    seen = {"captured": "2026-11-30T01:00:00+00:00", "nvml": {"driver": "580.1"}, "gpus": [{"name": "NVIDIA H200"}] * 2}
    path, picture = folder / "moe.json", folder / "moe.png"
    path.write_text(json.dumps({"rows": rows, "environment": seen}))
    command = [sys.executable, "-W", "error::UserWarning", str(ROOT / "tools" / "moe_figures.py"), str(path), str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG"
    return done.stdout


def test_the_table_has_both_orders_of_every_row(tmp_path: Path) -> None:
    rows = [row(dtype, combine) for dtype in ("bf16", "fp8") for combine in ("bf16", "f32")]
    out = draw(rows, tmp_path)
    assert "| hy3 | fp8 | f32 | 1.50 (2.25) / 0.25 (0.20) | 3.2 / 3.2 | 5.1 / 5.1 | 0.40 / 0.40 |" in out
    assert out.count("| hy3 |") == 4


@pytest.mark.parametrize("stalls", [False, True])
def test_a_document_without_model_or_stamps_is_drawn_too(tmp_path: Path, stalls: bool) -> None:
    out = draw([row("fp8", "bf16", stalls, predicted=False)], tmp_path)
    assert ("| 1.50 / 0.25 |" in out) == stalls
