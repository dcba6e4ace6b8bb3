"""What tests of kernels look at: machine code around a pair of clock reads, structs of a source, and sources compiled for the CPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sass import Instruction, between

CLOCK = "SR_CLOCKLO"
NEAR = 24  # instructions, between the two clock reads behind a burst
#: What would wait, or store something else.
WAITS = r"\b(LDG|LD\.E|LDS|LDL|STL|STS|STG|BAR\.SYNC|MEMBAR|ATOM|RED|MUFU|CALL|SR_GLOBALTIMER|ERRBAR|CCTL)"
SIZES = {"u32": 4, "u64": 8, "unsigned short": 2}


def found(lines: list[str], pattern: str) -> list[int]:
    return [i for i, line in enumerate(lines) if re.search(pattern, line)]


def only_stores_are_timed(lines: list[str], store: str, count: int) -> list[int]:
    """Check that so many stores, and nothing that waits, lie between two clock reads, and a read of shared memory behind; return them."""
    stores, clocks = found(lines, store), found(lines, CLOCK)
    assert len(stores) == count
    first, last = max(i for i in clocks if i < stores[0]), min(i for i in clocks if i > stores[-1])
    assert found(lines[last : last + 32], r"\bLDS\b"), "a read behind the stores, before the next clock read"
    assert not found([line for line in lines[first + 1 : last] if not re.search(store, line)], WAITS)
    assert not found(lines, r"\b(LDL|STL)\b"), "no spill, no array in local memory"
    return stores


def stamps_of(code: list[Instruction], store: str, count: int = 4) -> tuple[list[int], int, int]:
    """Return the burst's stores, so many, and the clock reads `issued` and `taken` behind them."""
    clocks = [i for i, x in enumerate(code) if CLOCK in x.text]
    for start, issued, taken in zip(clocks, clocks[1:], clocks[2:], strict=False):
        stores = [i for i in range(start, issued) if re.search(store, code[i].text)]
        if len(stores) == count and taken - issued < NEAR:
            return stores, issued, taken
    raise AssertionError("no burst with two clock reads behind it")


def waits_of_issued(code: list[Instruction], store: str) -> list[str]:
    """Return what waits for a last store to be taken before, or at, the clock read `issued`."""
    stores, issued, _ = stamps_of(code, store)
    ways = {s: between(code, s, issued, set(stores)) for s in stores}
    return [f"{code[s].text} <- {code[i].text}" for s, way in ways.items() for i in sorted(way) if code[s].read in code[i].waits]


def reads_behind(code: list[Instruction], store: str, count: int = 4) -> bool:
    """Whether an instruction before `taken` waits for a read of shared memory that begins after every store."""
    stores, _, taken = stamps_of(code, store, count)
    loads = [i for i in range(max(stores), taken) if code[i].plain.startswith("LDS")]
    return any(code[i].written in x.waits for i in loads for x in code[i + 1 : taken + 1] if x.plain == x.text)


def struct_of(text: str, name: str) -> list[tuple[str, int]]:
    """Return fields and sizes of a struct of a CUDA source."""
    body = re.search(rf"struct {name} {{.*?\n(.*?)\n}};", text, re.S)
    assert body, name
    return [
        (n.strip(), SIZES[kind]) for kind, names in re.findall(rf"({'|'.join(SIZES)}) ([^;]+);", body.group(1)) for n in names.split(",")
    ]


def struct_like(dtype: np.dtype[Any]) -> list[tuple[str, int]]:
    """Return what `struct_of` must find for a dtype."""
    assert dtype.fields is not None
    mine = [(n, dtype.fields[n][0]) for n in dtype.names or ()]
    return [(f"{n}[{d.shape[0]}]" if d.shape else n, d.base.itemsize) for n, d in mine]


def run_on_cpu(source: str, folder: Path, defines: dict[str, str] | None = None) -> bytes:
    """Compile C++ for the CPU and return what it prints."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler for the CPU here")
    (folder / "code.cpp").write_text(source)
    words = [f"-D{k}={v}" for k, v in (defines or {}).items()]
    subprocess.run([compiler, "-std=c++17", "-O1", "-w", *words, "-o", folder / "code", folder / "code.cpp"], check=True)
    return subprocess.run([folder / "code"], check=True, capture_output=True).stdout
