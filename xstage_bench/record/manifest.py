"""``manifest.json``: what was run, on what, in which state. Written first, incomplete, and replaced at the end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xstage_bench.errors import DataError
from xstage_bench.io.identity import Kernel
from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.schedule.bursts import HOST
from xstage_bench.schedule.device import Node

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
#: Of clocks, ticks and rates: no node has more.
_LARGEST_RATE = 1e6


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What was run, on what, in which state.

    Parameters
    ----------
    backend : str
        ``cuda``, ``sim:PRESET`` or ``replay:NAME``.
    simulated : bool
        True also for the replay of a simulated run: no artefact made from it may pass for a measurement.
    created, finished : str
        ISO 8601, UTC; `finished` is null until the run is complete.
    complete : bool
        False while the run goes on, and for ever when it was killed; ``--resume`` finishes it.
    argv : list of str
        The command as typed.
    versions : dict
        Of this package, Python and what the numbers depend on; null where a package is absent.
    cuda_sources : str or None
        Hash of ``cuda/``; null unless the backend compiles it.
    kernels : list of Kernel
        Every kernel that was loaded: while the run goes on, those loaded at its start. Empty where nothing is compiled, and in runs from
        before identities.
    node : Node
    environment_before, environment_after : dict or None
        Named facts only (clocks, throttle reasons, links and their state, driver); never the process environment.
    link_error_deltas : dict or None
        Growth of the NVLink error counters over the run.
    seed : int
    options : dict
        What decided the plan, by name.
    failed_pairs : dict
        ``"0>1"`` to the reason; no number of these pairs is used.
    counts : dict
        ``rows``, ``executions``, ``schedules`` and per status ``status_ok``, ...; filled in at the end.
    wall_s : float or None
    stopping : dict or None
        Where repetition ended by rule: the half width asked for (`until`), the `floor`, and by pair how many schedules were `sure`, and
        which, by probe, ended at the `ceiling` or with the `budget`, each with the half width that it reached.
    parts : dict of str to str
        Digest of each Parquet file by its name in the folder; filled in at the end. Empty while the run goes on, and in runs from before
        digests.
    notes : list of str
        What a reader should know, one sentence each.
    """

    schema_version: int = SCHEMA_VERSION
    backend: str
    simulated: bool
    created: str = field(default_factory=utc_now)
    finished: str | None = None
    complete: bool = False
    argv: list[str] = field(default_factory=list)
    versions: dict[str, str | None] = field(default_factory=dict)
    cuda_sources: str | None = None
    kernels: list[Kernel] = field(default_factory=list)
    node: Node
    environment_before: dict[str, Any] | None = None
    environment_after: dict[str, Any] | None = None
    link_error_deltas: dict[str, Any] | None = None
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    failed_pairs: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    wall_s: float | None = None
    stopping: dict[str, Any] | None = None
    parts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a run folder.

    Raises
    ------
    UsageError
        It does not exist.
    DataError
        Not strict JSON, another schema, a newer version, or a node that cannot be.
    """
    path = folder / MANIFEST_NAME
    manifest = read_json(path, Manifest, newest=SCHEMA_VERSION)
    indices = [gpu.index for gpu in manifest.node.gpus]
    if not indices or any(a not in indices or b not in (*indices, HOST) for a, b in manifest.node.pairs):
        raise DataError(f"{path}: 'node' names pairs of GPUs that it does not list", "this manifest is damaged: take it from a copy")
    node = manifest.node
    rates = {f"gpus[{i}].sm_clock_mhz": gpu.sm_clock_mhz for i, gpu in enumerate(node.gpus)}
    rates |= {} if node.timer_tick_ns == 0 else {"timer_tick_ns": node.timer_tick_ns}  # 0: of imported stamps it is not known
    rates |= {} if node.line_rate_gb_per_s is None else {"line_rate_gb_per_s": node.line_rate_gb_per_s}
    for key, value in rates.items():
        if not 0 < value < _LARGEST_RATE:
            raise DataError(f"{path}: node.{key} is {value:g}, which cannot be", "this manifest is damaged: take it from a copy")
    return manifest


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a run folder, replacing the one before it in one step."""
    write_json(folder / MANIFEST_NAME, manifest)


def resume_mismatch(old: Manifest, new: Manifest) -> str | None:
    """Say in one sentence why a run described by `new` must not add to the folder of `old`; None when it may."""
    known = {k.identity for k in old.kernels}
    for kernel in new.kernels if known else ():
        if kernel.identity not in known:
            return f"the run began with another {kernel.source} for {kernel.arch} than the one here (sources, macros or compiler)"
    names = ("backend", "simulated", "seed") if known and new.kernels else ("backend", "simulated", "cuda_sources", "seed")
    for name in names:
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            return f"{name} was {before!r} and is now {now!r}"
    identity = (
        [(g.index, g.name, g.sm_count, g.uuid) for g in old.node.gpus],
        [(g.index, g.name, g.sm_count, g.uuid) for g in new.node.gpus],
    )
    if identity[0] != identity[1]:
        return f"the GPUs are others: {_names(old)} before, {_names(new)} now"
    return None


def resumed(old: Manifest, *, at: str) -> Manifest:
    """Return the manifest under which an interrupted run goes on: the first command stays, and a note says when it was resumed."""
    return dataclasses.replace(old, notes=[*old.notes, f"interrupted, then resumed at {at}"])


def _names(manifest: Manifest) -> str:
    return ", ".join(f"{g.name} {g.uuid or ''}".strip() for g in manifest.node.gpus)
