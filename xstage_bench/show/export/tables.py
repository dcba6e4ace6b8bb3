"""A model as JSON, TOML and CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import msgspec

from xstage_bench.io.json_file import encode_json
from xstage_bench.show.export.document import ExportedModel

#: Fitted numbers of a stage, each with interval, status and statistic.
ESTIMATES = ("t0_cycles", "drain_gb_per_s", "capacity_bytes")
_KEY = ("pair", "flavour", "layout", "producers", "warps", "reference_bytes")
_NUMBER = ("value", "standard_error", "low", "high", "level", "status", "statistic", "reason")


def as_json(exported: ExportedModel) -> str:
    """One strict JSON object; a number that is missing is null with a status and a reason."""
    return encode_json(exported).decode()


def as_csv(exported: ExportedModel) -> str:
    """One row per stage and number; the first columns say whose. A missing number is an empty cell."""
    p, out = exported.provenance, io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_KEY, "number", *_NUMBER, "sm_clock_mhz", "gpu", "backend", "simulated", "measured", "model"])
    where = [p.gpu, p.backend, str(p.simulated).lower(), p.measured, p.model]
    for stage in exported.stages:
        key = [stage.pair, stage.flavour, stage.layout, stage.producers, stage.warps, stage.bytes]
        for name in ESTIMATES:
            number = msgspec.to_builtins(getattr(stage, name))
            writer.writerow([*key, name, *(number[field] for field in _NUMBER), stage.sm_clock_mhz, *where])
    return out.getvalue()


def as_toml(exported: ExportedModel) -> str:
    """TOML 1.0. It has no null: a missing number's key is absent, its status and reason are there."""
    document: dict[str, Any] = json.loads(as_json(exported))
    lines = [f"schema_version = {document['schema_version']}", ""]
    _table(lines, "provenance", document["provenance"])
    for name in ("stages", "sm_share"):
        for entry in document[name]:
            lines.append(f"[[{name}]]")
            _table(lines, name, entry, header=False)
    return "\n".join(lines)


def _table(lines: list[str], name: str, table: dict[str, Any], *, header: bool = True) -> None:
    if header:
        lines.append(f"[{name}]")
    inner = {k: v for k, v in table.items() if isinstance(v, dict)}
    lines.extend(f"{k} = {_value(v)}" for k, v in table.items() if v is not None and k not in inner)
    lines.append("")
    for key, value in inner.items():
        _table(lines, f"{name}.{key}", value)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL and half a surrogate pair: neither is in a JSON file's text.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)  # true, false, 12, 1e-05: written alike in both
