"""A process of its own for each fused measurement: a context that hangs or faults is killed, and what was measured before it is kept."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from xstage_bench.device.cuda.compile import newly_compiled
from xstage_bench.errors import DeviceLostError, XStageError
from xstage_bench.io.identity import Kernel, merged, plain
from xstage_bench.machine.environment import snapshot
from xstage_bench.measure.rounds import Outcome
from xstage_bench.measure.survey import head_of
from xstage_bench.record.manifest import utc_now
from xstage_bench.schedule.device import Gpu, Node

#: Silence after which the process is taken for hung. Every wait inside the kernels ends after 2 s; compiling and connecting take longer.
SILENCE_S = 120.0
#: The same before its first word: a process has to start and to import first.
START_S = 120.0
#: Puts its results into the pipe by calling what it is given; runs in the new process.
Work = Callable[[dict[str, Any], Callable[[str, Any], None]], None]


def head(
    kind: str, *, argv: Sequence[str] = (), seed: int = 0, options: Mapping[str, Any] | None = None
) -> Callable[[bool], dict[str, Any]]:
    """Return what makes the head of a document of a fused kernel (`survey.head_of`), as it is when called; told whether all is measured.

    The GPUs are as the driver names them, without their SMs: the measuring process alone holds contexts.
    """
    before, created, started = snapshot(), utc_now(), time.monotonic()
    seen = [g for g in before["gpus"] if g.get("index") is not None and g.get("name")]
    gpus = tuple(Gpu(g["index"], g["name"], (), float(g.get("sm_clock_max_mhz") or 0), g["uuid"], g["pci_address"]) for g in seen)

    def now(complete: bool) -> dict[str, Any]:
        outcome = Outcome(wall_s=time.monotonic() - started, complete=complete)
        given: dict[str, Any] = {"argv": argv, "seed": seed, "options": options}
        return head_of(kind, "cuda", Node(gpus, (), 0.0), outcome, before, created, 1, **given)

    return now


def finish(document: dict[str, Any], now: Callable[[bool], dict[str, Any]]) -> dict[str, Any]:
    """Return the document of a measurement that is done: state of the machine after it, time, and that it is complete."""
    done = now(True)
    return {**document, **{name: done[name] for name in ("finished", "complete", "environment_after", "link_error_deltas", "wall_s")}}


def results(work: Work, job: dict[str, Any], silence_s: float = SILENCE_S) -> Iterator[tuple[str, Any]]:
    """Yield what `work` sends, as (kind, value), until it is done; before a value, as ``kernels``, those compiled for it.

    `XStageError`: what `work` raised, or `DeviceLostError` when the process died or was silent for too long.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(work, job, there))  # no daemon: it may have helpers of its own
    process.start()
    there.close()
    patience_s = max(START_S, silence_s)
    try:
        while True:
            if not here.poll(patience_s):
                process.kill()  # it hears nothing: to wait for its end would only take longer
                raise DeviceLostError(f"the measuring process was silent for {patience_s:.0f} s and has been ended", "run 'xstage doctor'")
            patience_s = silence_s
            try:
                kind, value = here.recv()
            except EOFError:
                process.join()
                raise DeviceLostError(f"the measuring process died (exit status {process.exitcode})", "run 'xstage doctor'") from None
            if kind == "done":
                return
            if kind == "error":
                raise value
            yield kind, value
    finally:
        here.close()
        process.join(5.0)
        if process.is_alive():
            process.kill()
            process.join()


def recorded(work: Work, job: dict[str, Any], document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what `results` does, but for the identities of the kernels, which `document` is given under ``kernels``."""
    for kind, value in results(work, job):
        if kind == "kernels":
            document["kernels"] = plain(merged([Kernel(**one) for one in document["kernels"]], value))
        else:
            yield kind, value


def _serve(work: Work, job: dict[str, Any], pipe: Connection) -> None:
    def send(kind: str, value: Any) -> None:
        if kernels := newly_compiled():
            pipe.send(("kernels", kernels))
        pipe.send((kind, value))

    try:
        work(job, send)
        pipe.send(("done", None))
    except BrokenPipeError:  # who asked has gone: there is nobody to tell
        return
    except XStageError as error:
        pipe.send(("error", error))
    except Exception as error:  # of CUDA, mostly: a message for the user, not a traceback in a process that nobody sees
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        pipe.send(("error", DeviceLostError(f"the measurement failed in {where}: {type(error).__name__}: {error}", "run 'xstage doctor'")))
