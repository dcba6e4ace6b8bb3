"""The recorded model as that of another GPU: other name, other number of SMs."""

from __future__ import annotations

import json
from pathlib import Path

import h200

RECORDED = h200.MODEL
#: Name and SMs: in the registry, and one that nobody knows.
OTHERS = (
    ("NVIDIA H20", 78),
    ("NVIDIA A100-SXM4-80GB", 108),
    ("NVIDIA H100 PCIe", 114),
    ("NVIDIA B200", 148),
    ("NVIDIA X1", 148),
)


def write_model(path: Path, gpu: str, sms: int) -> Path:
    """Write the recorded model with the map of a GPU of so many SMs, six to a unit."""
    document = json.loads(RECORDED.read_text())
    document["gpu"] = gpu
    units = -(-sms // 6)
    for pair in document["pairs"]:
        if pair["node_basis"] is not None:
            pair["node_basis"]["placement"]["units"] = [list(range(i, sms, units)) for i in range(units)]
    path.write_text(json.dumps(document))
    return path
