"""A run of the MoE layer: the document, kept after every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xstage_bench.errors import WaivedError
from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.kernels.moe.forecast import forecast_notes
from xstage_bench.kernels.moe.suite import MoeCase, run_suite
from xstage_bench.kernels.moe.tuned import TUNED
from xstage_bench.kernels.session import finish, head, recorded
from xstage_bench.machine.gpus import tuned_document
from xstage_bench.model.run_fit import find_model


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOptions:
    """How a suite is run; the fields are those of the job of `suite.run_suite`."""

    model: Path | None = None
    devices: tuple[int, ...] = (0, 1)
    combines: tuple[str, ...] = ("bf16",)
    repetitions: int = 7
    seed: int = 0
    budget_s: float = float("inf")
    unfused: bool = False


def devices_of(ep: int, gpus: int) -> tuple[int, ...]:
    """Return the GPUs of the first ranks: one for each where there are enough, else two, which emulate the group for the sender.

    `WaivedError`: fewer than two GPUs for more than one rank.
    """
    if ep <= gpus:
        return tuple(range(ep))
    if gpus < 2:
        raise WaivedError(f"{ep} ranks on {gpus} GPUs: even an emulated group needs two", "--ep 1")
    return (0, 1)


def run(
    cases: Sequence[MoeCase], path: Path, options: SuiteOptions, *, resume: bool = False, argv: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> dict[str, Any]:  # fmt: skip
    """Measure cases and keep the document at `path` after every row; `resume`: go on with the one that is there.

    `XStageError`: the GPUs cannot be measured, or were lost; what was measured before lies at `path`.
    """
    now = head("moe", argv=argv, seed=options.seed)
    document: dict[str, Any] = {**now(False), "rows": [], "failed": {}, "left": {}, "tiles": {}}
    if resume:
        kept = read_json(path, dict)  # what was measured; the head is that of this call
        document |= {name: kept[name] for name in ("rows", "failed", "tiles", "kernels") if name in kept}
    environment = document["environment_before"]
    names = [str(gpu["name"]) for gpu in environment["gpus"] if gpu["index"] in options.devices and gpu["name"]] or ["an unknown GPU"]
    document |= {"environment": environment, "tuned": tuned_document(names, TUNED), "forecast_notes": []}
    if options.model is not None:
        document["forecast_notes"] = forecast_notes(find_model(options.model))
    for note in (document["tuned"]["note"], *document["forecast_notes"]):
        if note is not None:
            say(f"note: {note}")
    done = {row["key"] for row in document["rows"]}
    job = {"cases": list(cases), "done": done, **asdict(options), "gpu": names[0]}
    for kind, value in recorded(run_suite, job, document):
        if kind == "say":
            say(value)
        elif kind == "row":
            document["rows"].append(value)
            write_json(path, document)
        else:
            document[kind][value[0]] = value[1]
    document = finish(document, now)
    write_json(path, document)
    return document
