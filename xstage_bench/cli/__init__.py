"""The command line: one verb per file, no logic. Here only: from words to an exit status.

Codes: 0 ok; 1 error, also when some pairs failed or a file's content is unusable; 2 usage, also a path that does not exist;
3 waived, nothing here can be measured; 4 a quality gate failed; 5 a regression; 130 SIGINT; 143 SIGTERM. A reader of stdout that goes away
changes nothing: the status is the verb's own.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from xstage_bench.cli.group import INTERRUPTED, Stopped, Terminated, xstage
from xstage_bench.cli.memory import require_room
from xstage_bench.cli.output import drop_stdout, fail
from xstage_bench.errors import ERROR, USAGE, XStageError, out_of_memory


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run ``xstage`` and end the process with its exit status."""
    with contextlib.suppress(ValueError):  # not in the main thread: then SIGTERM is the host program's business
        signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run ``xstage`` and return its exit status; no exception leaves but SystemExit from shell completion.

    Parameters
    ----------
    argv : sequence of str
        Without the program's name.
    """
    words = list(argv)
    code = _run(words)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        drop_stdout()
        return code or fail(ERROR, f"cannot write to stdout: {error.strerror or error}", None, False)
    return code


def _run(words: list[str]) -> int:
    as_json = "--json" in words
    try:
        require_room(words)
        status = xstage.main(words, prog_name="xstage", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except Stopped as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt) as stop:
        return 128 + signal.SIGTERM if isinstance(stop.__cause__ or stop, Terminated) else INTERRUPTED
    except click.ClickException as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2 and later: the help itself, not a line on it
            print(error.format_message(), file=sys.stderr, flush=True)
            return USAGE
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else "xstage"
        return fail(USAGE, error.format_message(), f"{where} --help", as_json)
    except XStageError as error:
        _trace(words)
        return fail(error.exit_code, error.message, error.hint, as_json)
    except OSError as error:
        _trace(words)
        if out_of_memory(error):
            return _no_memory(error, as_json)
        return fail(ERROR, f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", None, as_json)
    except Exception as error:
        _trace(words)
        if out_of_memory(error):
            return _no_memory(error, as_json)
        text = " ".join(str(error).split())
        return fail(ERROR, f"internal error, {type(error).__name__}: {text}", "run it again with --debug and report that", as_json)


def _no_memory(error: Exception, as_json: bool) -> int:
    why = f": {error}" if isinstance(error, MemoryError) and str(error) else ""
    return fail(ERROR, f"out of memory{why}", "ulimit -v unlimited; or measure less: --quick, --only PROBE, --pairs", as_json)


def _trace(words: list[str]) -> None:
    if "--debug" in words:
        traceback.print_exc()


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
