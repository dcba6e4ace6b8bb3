"""What the streams and paths of a shell can be: pipes, full, closed, not UTF-8. One line, the right status, never a traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from loaded import ROOT, environ

MODEL = ROOT / "results" / "reference" / "h200-nv18"
SCHEDULE = '{"producers": 132, "warps": 4, "bursts": [{"bytes": 65536.0}]}'
SAID = "xstage: cannot write to stdout: No space left on device"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash in which ``xstage`` is this tree's; M is a model, S a schedule."""
    start = f"xstage() {{ '{sys.executable}' -m xstage_bench \"$@\"; }}; "
    return subprocess.run(["bash", "-c", start + line], capture_output=True, cwd=folder, env=environ(M=str(MODEL), S=SCHEDULE), timeout=120)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ('xstage predict "$M" <(echo "$S")', 0, ""),
        ('echo "[$S]" | xstage predict "$M" - | head -1; exit ${PIPESTATUS[1]}', 0, ""),
        ('xstage predict <(cat "$M/model.json") /dev/stdin <<<"$S"', 0, ""),
        ("xstage probes >/dev/full", 1, SAID),
        ("xstage probes --json >/dev/full", 1, SAID),
        ("xstage probes >&-", 1, "xstage: stdout is closed"),
        ("xstage predict no.json x --json >/dev/full", 2, "xstage: no.json: no such file"),
        ("xstage predict no.json x 2>/dev/full", 2, ""),
        ("xstage predict no.json x >&- 2>&-", 2, ""),
        ('xstage predict "$M" - <&-', 2, "xstage: - means stdin, which is closed"),
        ("xstage predict $'\\xff.json' x", 2, "no such file"),
    ],
)
def test_streams(tmp_path: Path, line: str, code: int, said: str) -> None:
    done = shell(line, tmp_path)
    text = done.stderr.decode(errors="replace")
    assert done.returncode == code, text
    assert said in text
    assert "Traceback" not in text
    assert "internal error" not in text


def test_a_folder_whose_path_is_not_utf_8(small_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / b"r\xff".decode(errors="surrogateescape")
    shutil.copytree(small_run, folder)
    for words, code in (("check", 0), ("export --format csv --out x.csv", 0)):
        verb, _, rest = words.partition(" ")
        done = shell(f"xstage {verb} r$'\\xff' {rest} --json", tmp_path)
        assert done.returncode == code, done.stderr
        json.loads(done.stdout)
    assert (tmp_path / "x.csv").stat().st_size > 1000
    assert shell("xstage fleet . --json", tmp_path).stderr.count(b"Traceback") == 0


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        ("xstage run --backend", "sim:h200", "sim:h200-nv18-x2"),
        ("xstage run --backend", "replay:", "replay:h200-x2/profile"),
        ("xstage compare --reference", "h200-nv", "h200-nv18"),
        ("xstage compare", "h200-nv", "h200-nv18"),
        ("xstage run --only", "iso", "isolated"),
        ("xstage advise m.json --flavour", "st.v", "st.v4"),
    ],
)
def test_values_of_options_are_completed(xstage, words: str, incomplete: str, offered: str) -> None:
    count = len(words.split())
    done = xstage(_XSTAGE_COMPLETE="bash_complete", COMP_WORDS=f"{words} {incomplete}", COMP_CWORD=str(count))
    assert f"plain,{offered}" in done.out.split()
