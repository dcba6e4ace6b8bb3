"""What the recorded replays say about advice, and that the Keye table still is what its command writes."""

from __future__ import annotations

from pathlib import Path

import advice_regret
import keye_table
import pytest

from xstage_bench.io.json_file import read_json
from xstage_bench.model.document import load_model

ROOT = Path(__file__).parents[2]
MODEL = load_model(ROOT / "results/h200-x2/2026-11-29-profile/model.json")
REPLAY = ROOT / "results/h200-x2/replay/skeleton-block-spin/replay.json.gz"


@pytest.mark.parametrize(
    ("shape", "dtype", "tokens"),
    [("keye-vl-2", "bf16", 512), ("keye-vl-2", "bf16", 2048), ("qwen3.5", "fp8", 512), ("hy3", "fp8", 512), ("mimo-v2.5", "fp8", 512)],
)
def test_the_lead_chosen_is_as_good_as_the_best_of_all_replayed(shape, dtype, tokens):
    rows = advice_regret.replayed(REPLAY)[shape, dtype, tokens]
    assert len(rows) >= 7
    _, lost, predicted, measured = advice_regret.judge(MODEL, shape, dtype, tokens, rows)
    assert lost <= 0.01  # of 42 such cells the worst is 1.7 %
    assert predicted == pytest.approx(measured, abs=0.05)  # 0.7 points in the median of 42, 5.1 at most


def test_the_keye_table_has_every_row_and_says_what_was_measured():
    document = read_json(ROOT / "results/h200-x2/keye/keye.json", dict)
    assert {(r["mode"], r["context"], r["ep"], r["sp"], r["dtype"]) for r in document["rows"]} == {
        (mode, context, ep, sp, dtype)
        for mode, context in keye_table.CASES
        for ep in keye_table.EP
        for sp in keye_table.SP
        for dtype in keye_table.DTYPES
    }
    phases = [p for row in document["rows"] for p in row["phases"]]
    assert {p["status"] for p in phases} == {"predicted", "measured"}
    assert all((p["measured_ns"] is not None) == (p["status"] == "measured") for p in phases)
    assert all(p["advised_ns"] <= p["total_ns"] for p in phases)
    page = (ROOT / "results/h200-x2/keye").read_text()
    assert all(keye_table.line(row) in page for row in document["rows"])
    errors = sorted(abs(p["total_ns"] / p["measured_ns"] - 1) for p in phases if p["measured_ns"])
    assert errors[len(errors) // 2] < 0.05
    assert any("assumed" in note for note in document["notes"])
