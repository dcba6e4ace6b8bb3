"""The one form of what is measured and kept as a document: the head of a run's manifest, then the rows of a kind.

A run folder holds the samples of bursts; scenes, replays, watches, copies and the like are small enough for one JSON file. Both begin
with the same facts (`Manifest`), so what reads one knows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from xstage_bench.io.identity import Kernel
from xstage_bench.io.json_file import read_json
from xstage_bench.machine.environment import link_error_deltas, snapshot
from xstage_bench.measure.rounds import Opened, Outcome, Progress, Work, run_rounds
from xstage_bench.record.manifest import SCHEMA_VERSION, Manifest, utc_now
from xstage_bench.schedule.device import Node, kernels_of


class Described(Opened, Protocol):
    """A device that says what it is."""

    @property
    def backend(self) -> str:
        """As `Device.backend`."""
        ...


D = TypeVar("D", bound=Described)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyDocument(Manifest):
    """A document: everything of a `Manifest`, and what was found.

    Parameters
    ----------
    kind : str
        ``scenes``, ``replay``, ``visibility``, ``copies``, ``footprint``, ``pulls``, ``processes``; null in documents of before.
    processes : int
        Fresh processes with their own allocations.
    waived : dict
        ``"0>1"`` to the reason why it was not measured.
    rows : list of dict
        One for each thing measured; the columns are those of the kind (docs/files.md).
    """

    kind: str
    processes: int = 1
    waived: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


def take(
    kind: str,
    open_device: Callable[[int], D],
    work: Callable[[D, int], Iterable[Work]],
    body: Callable[[Node], Mapping[str, Any]],
    *,
    processes: int,
    simulated: bool = False,
    seed: int = 0,
    argv: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure in rounds (`run_rounds`) and return the document, as plain data.

    Parameters
    ----------
    kind : str
    open_device, work, processes, progress
        As `run_rounds`.
    body : callable
        ``node -> rows and what else the kind adds``, called when everything is measured.
    simulated : bool
    seed : int
    argv, options
        For the head.
    keep : callable, optional
        Told the document so far when the measurement is interrupted: it says ``complete: false``.

    Raises
    ------
    KeyboardInterrupt
        After `keep`.
    """
    before, outcome, created = snapshot(), Outcome(), utc_now()
    seen: list[tuple[Node, str, list[Kernel]]] = []

    def noted(device: D, process: int) -> Iterable[Work]:
        if not seen:
            seen.append((device.node(), device.backend, kernels_of(device)))
        return work(device, process)

    def document() -> dict[str, Any]:
        node, backend, loaded = seen[0]
        outcome.kernels = outcome.kernels or loaded
        given: dict[str, Any] = {"simulated": simulated, "argv": argv, "seed": seed, "options": options}
        return {**head_of(kind, backend, node, outcome, before, created, processes, **given), **body(node)}

    try:
        run_rounds(open_device, processes, noted, progress=progress, outcome=outcome)
    except KeyboardInterrupt:
        if keep is not None and seen:
            keep(document())
        raise
    return document()


def head_of(
    kind: str,
    backend: str,
    node: Node,
    outcome: Outcome,
    before: dict[str, Any],
    created: str,
    processes: int,
    *,
    simulated: bool = False,
    argv: Iterable[str] = (),
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the head of a document, with the state of the machine now as that after the measurement.

    Parameters
    ----------
    kind, backend, node, simulated, argv, seed, options, processes
        As `SurveyDocument`.
    outcome : Outcome
    before : dict
        `snapshot` from before the measurement.
    created : str
        `utc_now` from before the measurement.
    """
    after = snapshot()
    head = SurveyDocument(
        kind=kind,
        backend=backend,
        simulated=simulated,
        created=created,
        finished=utc_now() if outcome.complete else None,
        complete=outcome.complete,
        argv=list(argv),
        versions=dict(before.get("versions") or {}),
        cuda_sources=_cuda_sources(backend),
        kernels=outcome.kernels,
        node=node,
        environment_before=before,
        environment_after=after,
        link_error_deltas=link_error_deltas(before, after),
        seed=seed,
        options=dict(options or {}),
        failed_pairs=outcome.failed_pairs,
        counts={"executions": outcome.executions},
        wall_s=round(outcome.wall_s, 3),
        notes=outcome.notes,
        processes=processes,
    )
    return {**msgspec.to_builtins(head), **older_names(head)}


def older_names(head: SurveyDocument) -> dict[str, Any]:
    """Return what documents called some facts of their head before there was one head for all: scripts read those."""
    node = head.node
    return {
        "gpus": [{"index": g.index, "name": g.name, "sms": g.sm_count, "uuid": g.uuid, "pci_address": g.pci_address} for g in node.gpus],
        "line_rate_gb_per_s": node.line_rate_gb_per_s,
        "timer_tick_ns": node.timer_tick_ns,
        "driver": ((head.environment_before or {}).get("nvml") or {}).get("driver"),
        "failed": head.failed_pairs,
    }


def read_survey(path: Path) -> dict[str, Any]:
    """Read a document that a verb wrote, also one of before there was one head for all.

    Raises
    ------
    UsageError, DataError
        As `read_json`; of a newer version.
    """
    return read_json(path, dict[str, Any], newest=SCHEMA_VERSION)


def _cuda_sources(backend: str) -> str | None:
    from xstage_bench.device.cuda.compile import sources_hash

    return sources_hash() if backend == "cuda" else None
