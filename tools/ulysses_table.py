"""Print the tables of docs/ulysses.md from a recorded document of `xstage fused ulysses` that has its forecasts.

python tools/ulysses_table.py [FILE]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from xstage_bench.fused.ulysses.summary import summarise

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "results" / "h200-x2" / "ulysses" / "ulysses.json"
COLUMNS = (
    *("shape", "rows", "SP", "alone, us", "TFLOP/s", "over cuDNN", "fused", "arrived", "push", "copy engine", "copying SMs", "NCCL"),
    *("speed-up over NCCL", "hidden share, %", "residual predicted, us", "measured, us", "n"),
)


def main() -> None:
    """Read the document and print a Markdown table of the cases, then what the numbers say together."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    document = json.loads(path.read_text())
    rows = summarise(document)["rows"]
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for row in rows:
        print("| " + " | ".join(_cells(row)) + " |")
    print()
    real = [r for r in rows if r["seq"] >= 4096]
    for name, wrong in (
        (
            "alone below 0.90 (0.85 at 64) of cuDNN",
            [r for r in real if (r["cudnn_us"] or 1e9) / r["alone_us"] < (0.9 if r["head_dim"] == 128 else 0.85)],
        ),
        ("alone / fused below 0.95", [r for r in real if r["fused_over_alone"]["value"] > 1 / 0.95]),
        ("chosen over 2 % slower than the best found", [r for r in real if r["fused_us"] > 1.02 * r["best_found_us"]]),
        ("residual off by more than 30 % and 3 us", [r for r in real if _off(r)]),
    ):
        print(f"{name}: {len(wrong)} of {len(real)}: " + ", ".join(f"{r['shape']} {r['seq']} SP{r['sp']}" for r in wrong))


def _off(row: dict[str, Any]) -> bool:
    predicted, measured = row["predicted_residual_us"], row["measured_residual_us"]["value"]
    return predicted is not None and abs(predicted - measured) > max(3.0, 0.3 * abs(measured))


def _cells(row: dict[str, Any]) -> list[str]:
    alone = row["alone_us"]

    def over(us: float | None) -> str:
        return "-" if us is None else f"{us / alone:.3f}"

    def spread(found: dict[str, Any] | None, digits: int = 3, scale: float = 1.0) -> str:
        if found is None:
            return "-"
        text = f"{scale * found['value']:.{digits}f}"
        return text if found["low"] is None else f"{text} ({scale * found['low']:.{digits}f}-{scale * found['high']:.{digits}f})"

    return [
        row["shape"],
        str(row["seq"]),
        f"{row['sp']}{' e' if row['emulated'] else ''}",
        f"{alone:.1f}" if alone < 1000 else f"{alone:.0f}",
        f"{row['tflop_per_s'][row['alone']]:.0f}",
        "-" if row["cudnn_us"] is None else f"{row['cudnn_us'] / alone:.2f}",
        spread(row["fused_over_alone"]),
        over(row["fused_visible_us"]),
        over(row["serial_push_us"]),
        over(row["serial_copy_engine_us"]),
        over(row["serial_copying_sms_us"]),
        over(row["serial_nccl_us"]),
        spread(row["speed_up"].get("serial_nccl"), 2),
        spread(row["hidden_share"].get("serial_nccl"), 0, 100.0),
        "-" if row["predicted_residual_us"] is None else f"{row['predicted_residual_us']:.1f}",
        spread(row["measured_residual_us"], 1),
        str(row["rounds"]),
    ]


if __name__ == "__main__":
    main()
