"""What a verb prints: results on stdout, everything else on stderr; with ``--json`` exactly one JSON object on stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xstage_bench.cli.fitted_text import columns_of, laid, painted, wrapped
from xstage_bench.errors import UsageError, XStageError

if TYPE_CHECKING:
    from xstage_bench.device.backend import BackendChoice
    from xstage_bench.machine.finding import Finding
    from xstage_bench.model.document import Model
    from xstage_bench.record.reader import Run

STDOUT = Path("-")
_NO_STDOUT = "stdout is closed, and a result has nowhere to go"
_STDOUT_HINT = "send stdout to a file on a disk with space, or to a program that reads it"


@dataclass(frozen=True, slots=True)
class Output:
    """Where a verb's words go. One is made for each call."""

    json: bool = False

    def result(self, document: Any, text: str) -> None:
        """Print a verb's result: the document as strict JSON with ``--json``, else the text."""
        if self.json:
            from xstage_bench.io.json_file import encode_json

            self.raw(encode_json(document))
        else:
            shown = painted(wrapped(text.rstrip("\n"), columns_of(sys.stdout)), sys.stdout)
            self.raw((shown + "\n").encode(errors="surrogateescape"))  # a path that is not UTF-8 comes out as it is

    def document(self, path: Path | None, document: Any, text: str) -> None:
        """Write a document to `path`, if any, and print it as a result; ``-`` puts the document alone on stdout."""
        from xstage_bench.io.json_file import encode_json, write_json

        if path == STDOUT:
            self.raw(encode_json(document))
            return
        if path is not None:
            write_json(path, document)
        self.result(document, text)

    def raw(self, data: bytes) -> None:
        """Write bytes to stdout as they are. A reader that went away has seen enough: the verb goes on and keeps its own exit status."""
        if sys.stdout is None:
            raise XStageError(_NO_STDOUT, _STDOUT_HINT)
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            drop_stdout()
        except OSError as error:
            drop_stdout()
            raise XStageError(f"cannot write to stdout: {error.strerror or error}", _STDOUT_HINT) from error

    def note(self, text: str) -> None:
        """Tell the user something that is not the result."""
        with contextlib.suppress(OSError):  # a full or closed stderr costs no result
            print(painted(wrapped(text, columns_of(sys.stderr)), sys.stderr), file=sys.stderr, flush=True)

    def next(self, command: str) -> None:
        """Name the command that comes next. A program that reads ``--json`` has no use for it."""
        if not self.json:
            self.note(f"next: {command}")

    def note_backend(self, choice: BackendChoice) -> None:
        """Say when what is measured is not what one would think: simulated, or stored to host memory."""
        if choice.simulated:
            self.note(f"SIMULATED: backend {choice.spec} ({choice.reason})")
        if choice.peer == "host":
            self.note(f"HOST MEMORY over PCIe is the destination ({choice.reason})")

    def note_pair(self, pair: str, reason: str, what: str = "") -> None:
        """Say why a pair has no numbers, naming it once."""
        self.note(f"xstage: {reason}" if f"pair {pair}" in reason else f"xstage: pair {pair}{what}: {reason}")

    def note_incomplete(self, run: Run) -> None:
        """Say that a run was interrupted, or that its files were changed since it was written."""
        if not run.manifest.complete:
            self.note(f"{run.folder} was interrupted; finish it: the command that made it, with --resume --out {run.folder}")
        if changed := run.changed():
            self.note(f"CHANGED since {run.folder} was written: {', '.join(changed)}")

    def no_json_beside(self, out: Path | None, what: str) -> None:
        """Refuse ``--json`` together with ``--out -``: stdout can hold one thing."""
        if self.json and out == STDOUT:
            raise UsageError(f"--json and --out - would both write to stdout, and {what} is not that JSON object", "leave one of them out")


def check_file(path: Path | None) -> None:
    """Refuse an ``--out`` that cannot be a file, before the work is done whose result it should hold."""
    if path is None or path == STDOUT:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder, so {path.name} cannot be written", f"mkdir -p {path.parent}")


def drop_stdout() -> None:
    """Let what is still written to stdout vanish; else the interpreter complains again when it flushes at exit."""
    if sys.stdout is None:
        return
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(code: int, message: str, hint: str | None, as_json: bool) -> int:
    """Print one line that says what is wrong and one that says what to type, and return the exit status."""
    line = " ".join(message.split())
    with contextlib.suppress(OSError, AttributeError):  # stderr may be full, or closed; the status still says it
        text = f"xstage: {line}" + (f"\n  try: {' '.join(hint.split())}" if hint else "")
        print(wrapped(text, columns_of(sys.stderr)), file=sys.stderr, flush=True)
    if as_json:
        from xstage_bench.io.json_file import encode_json

        with contextlib.suppress(XStageError):  # it may be stdout that cannot be written
            Output(json=True).raw(encode_json({"error": line, "hint": hint, "exit_code": code}))
    return code


def counted(number: int, what: str) -> str:
    """Return a number of things in words: ``1 schedule``, ``2 schedules``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Align columns: text to the left, numbers to the right, null as a dash; no wider than the reader's terminal."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(_numeric(row[i]) for row in cells) and bool(cells) for i in range(len(head))]
    return laid(head, cells, right, columns_of(sys.stdout))


def findings_text(findings: Sequence[Finding]) -> str:
    """Lay findings out, then what to type next for each that is not ok."""
    hints = "".join(dict.fromkeys(f"\n  {f.check}: try: {f.hint}" for f in findings if f.hint and f.status != "ok"))
    return table(["", "check", "finding"], [[f.status, f.check, f.detail] for f in findings]) + hints


def model_gate(out: Output, model: Model) -> dict[str, Any]:
    """Say on stderr that a model is scaled, or which pairs missed the hold-out of their own run; return what ``--json`` says of all."""
    from xstage_bench.judge.gate import missed
    from xstage_bench.model.scaled_node import SCALED

    if model.backend.startswith(SCALED):
        out.note("SCALED: " + "; ".join(model.notes[:1]) + "; what that rests on: xstage nodes show NAME")
    for name, verdict in missed(model).items():
        out.note(f"MISSED: the model of {name} missed its own hold-out: {'; '.join(verdict.reasons)}. Do not rely on its numbers")
    return {f"{p.pair} {p.flavour}": p.holdout for p in model.pairs if not p.is_local}


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10000 else f"{value:.0f}"
    return str(value)


def _numeric(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace("-", "", 1).replace("e+", "", 1).replace("%", "", 1).strip().isdecimal()
