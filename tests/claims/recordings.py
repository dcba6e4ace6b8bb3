"""Where the recordings lie that findings rest on: the paths of claims.toml."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from check_claims import ROOT, TABLE

from xstage_bench.io.json_file import read_json

Row = dict[str, Any]
PATHS = {name: ROOT / section["path"] for name, section in tomllib.loads(TABLE.read_text()).items()}
HERE = pytest.mark.skipif(not (ROOT / "results" / "h200-x2").is_dir(), reason="an sdist leaves the large runs out")


def document(section: str, name: str) -> Row:
    """Read a document of a recording."""
    return read_json(PATHS[section] / name, Row)
