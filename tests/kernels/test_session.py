"""A fused measurement's own process: what it sends arrives, and a process that raises, dies or hangs ends with an error of ours."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from xstage_bench.errors import DeviceLostError, WaivedError
from xstage_bench.kernels.session import results


def work(job: dict[str, Any], send: Any) -> None:
    for i in range(job["rows"]):
        send("row", i)
    match job["then"]:
        case "waive":
            raise WaivedError("nothing to measure", "another machine")
        case "fail":
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        case "die":
            os._exit(7)
        case "hang":
            time.sleep(60)


def collect(then: str) -> tuple[list[Any], Exception | None]:
    found: list[Any] = []
    try:
        for _, value in results(work, {"rows": 2, "then": then}, 5.0 if then == "hang" else 30.0):
            found.append(value)
    except Exception as error:
        return found, error
    return found, None


@pytest.mark.parametrize(
    ("then", "kind", "words"),
    [
        ("end", type(None), ""),
        ("waive", WaivedError, "nothing to measure"),
        ("fail", DeviceLostError, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("die", DeviceLostError, "exit status 7"),
        ("hang", DeviceLostError, "silent for 5 s"),
    ],
)
def test_what_was_sent_before_the_end_is_kept(then: str, kind: type, words: str) -> None:
    found, error = collect(then)
    assert found == [0, 1]
    assert isinstance(error, kind)
    assert words in str(error or "")


def test_a_process_whose_reader_has_gone_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    """A verb that is terminated says so itself; tracebacks of its helper would follow in the user's terminal."""
    asked = results(work, {"rows": 200_000, "then": "end"})
    assert next(asked) == ("row", 0)
    asked.close()  # type: ignore[attr-defined]
    assert capfd.readouterr().err == ""
