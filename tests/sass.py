"""The machine code of a CUBIN, by nvdisasm."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cubins
import pytest
from cubins import kept


def disassemble(cubin: bytes, *options: str) -> str:
    """Return what nvdisasm prints, all kernels and their comments; once for all tests of a session (`cubins`)."""
    path = kept(cubin, options)
    if path is None:
        return _nvdisasm(cubin, *options)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_nvdisasm(cubin, *options))
    return path.read_text()


def asked(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The parameters of those tests of the requesting file that were chosen to run."""
    return [item.callspec.params for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]


def prepare(name: str, makers: Sequence[Callable[[], bytes]], *options: str) -> None:
    """Compile and disassemble a list of kernels together, for the calls of `disassemble` that follow."""
    cubins.prepare(name, makers, _nvdisasm, *options)


def _nvdisasm(cubin: bytes, *options: str) -> str:
    bundled = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvdisasm"
    tool = str(bundled) if bundled.exists() else shutil.which("nvdisasm")
    assert tool is not None, "nvdisasm is missing: pip install nvidia-cuda-nvdisasm (part of the dev extra)"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-c", *options, file.name], check=True, capture_output=True, text=True).stdout


def lines_of(text: str) -> list[str]:
    """Return lines without their comments."""
    return [re.sub(r"/\*.*?\*/", "", line).strip() for line in text.splitlines()]


def kernels(cubin: bytes) -> dict[str, list[str]]:
    """Return the instructions and labels of each kernel, one a line."""
    parts = re.split(r"^\.text\.(\w+):$", disassemble(cubin), flags=re.MULTILINE)
    return {
        name: [line for line in lines_of(body) if (line and not line.startswith((".", "//"))) or line.startswith(".L")]
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


@dataclass(frozen=True)
class Instruction:
    """One instruction, the labels before it, and its scoreboards: waited for, freed when its registers are read, freed when it is done."""

    text: str
    labels: tuple[str, ...]
    waits: frozenset[int]
    read: int | None
    written: int | None

    @property
    def plain(self) -> str:
        """Return the text without its predicate."""
        return re.sub(r"^@!?U?P\w+\s+", "", self.text)


def instructions(cubin: bytes, kernel: str) -> list[Instruction]:
    """Return a kernel's instructions with what their control bits say (105 to 125 of the 128 of sm_70 and later)."""
    text = disassemble(cubin, "-hex")
    body = re.split(r"^\.text\.(\w+):$", text, flags=re.MULTILINE)
    lines = dict(zip(body[1::2], body[2::2], strict=True))[kernel].splitlines()
    found: list[Instruction] = []
    labels: list[str] = []
    current = ""
    for line in lines:
        if m := re.match(r"(\.L\w+):", line):
            labels.append(m.group(1))
        elif m := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;\s+/\* 0x[0-9a-f]{16} \*/", line):
            current = m.group(1)
        elif current and (m := re.match(r"\s+/\* 0x([0-9a-f]{16}) \*/", line)):
            high = int(m.group(1), 16)
            written, read, waits = high >> 46 & 7, high >> 49 & 7, high >> 52 & 63
            boards = frozenset(i for i in range(6) if waits >> i & 1)
            found.append(Instruction(current, tuple(labels), boards, None if read == 7 else read, None if written == 7 else written))
            labels, current = [], ""
    return found


def successors(code: list[Instruction]) -> list[list[int]]:
    """Return for each instruction which may come next. BSYNC falls through: its target is the label right behind it or another BSYNC."""
    place = {label: i for i, x in enumerate(code) for label in x.labels}
    out = []
    for i, x in enumerate(code):
        words = x.plain.split()
        target = re.search(r"`\((\S+)\)", x.plain)
        sure = x.plain == x.text and not re.match(r"BRA(\.\w+)*\s+!?U?P\w", x.plain)
        nexts = [place[target.group(1)]] if words[0].startswith("BRA") and target else []
        if not (sure and words[0].split(".")[0] in ("BRA", "EXIT")) and i + 1 < len(code):
            nexts.append(i + 1)
        out.append(nexts)
    return out


def reached(follow: list[list[int]], begin: int, ends: set[int]) -> set[int]:
    """Return what may come after `begin`, up to and with the first of `ends` on each way; `follow` as `successors` returns it."""
    seen: set[int] = set()
    todo = [begin]
    while todo:
        for n in follow[todo.pop()]:
            if n not in seen:
                seen.add(n)
                if n not in ends:
                    todo.append(n)
    return seen


def between(code: list[Instruction], begin: int, end: int, walls: set[int]) -> set[int]:
    """Return what may be executed after `begin` on a way to `end` that passes none of `walls`, with `end`; empty when there is none."""
    follow = successors(code)
    before: list[list[int]] = [[] for _ in code]
    for i, nexts in enumerate(follow):
        for n in nexts:
            before[n].append(i)
    ahead, back = reached(follow, begin, walls | {end}), reached(before, end, walls)
    return (ahead & back - walls) | {end} if end in ahead else set()


def without_predicate(line: str) -> str:
    """Return an instruction as it is executed where it is."""
    return re.sub(r"^@!?U?P\w+ ", "", line)


def unordered(code: list[str], event: str, flag: str, between: str) -> set[int]:
    """Follow every path from an event; return where a flag is reached that nothing `between` comes before.

    Parameters
    ----------
    code : list of str
        Of one kernel, as `kernels` gives it.
    event, flag, between : str
        Patterns at the beginning of an instruction, its predicate left out. Under a predicate `between` stops nothing.
    """
    bare = [without_predicate(line) for line in code]
    after = _successors(code, bare)
    seen: set[int] = set()
    todo = [n for i, line in enumerate(bare) if re.match(event, line) for n in after[i]]
    found = set()
    while todo:
        i = todo.pop()
        if i in seen:
            continue
        seen.add(i)
        if re.match(flag, bare[i]):
            found.add(i)
        if not re.match(between, code[i]):
            todo += after[i]
    return found


def _successors(code: list[str], bare: list[str]) -> list[list[int]]:
    """Where each instruction goes on. Threads that waited for their warp go on behind the wait: that is where they were told to meet."""
    labels = {line[:-1]: i for i, line in enumerate(code) if line.endswith(":")}
    meet = {line.split("`(")[1].split(")")[0] for line in bare if line.startswith("BSSY")}
    after = []
    for i, line in enumerate(bare):
        name = line.partition(" ")[0]
        assert not name.startswith("BSYNC") or code[i + 1][:-1] in meet, line
        goes = [labels[t] for t in re.findall(r"`\((\S+?)\)", line) if t in labels and not name.startswith("BSSY")]
        ends = line == code[i] and re.match(r"(EXIT|RET)\b|BRA(\.U)? `\(", line)
        after.append(goes + ([] if ends or i + 1 == len(code) else [i + 1]))
    return after
