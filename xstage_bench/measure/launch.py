"""One command on many nodes at once: srun or mpirun starts it everywhere, each node profiles itself, rank 0 gathers.

No MPI is needed: the launcher says who is who, and the ranks meet in the folder that they share. Each writes its run folder there and
then one small file that says how it ended, so that a rank that dies costs rank 0 a wait and no node its data. All ranks but rank 0 exit 0
whatever they found: mpirun would end every other node when one exits with a code; what they found is in their files, and rank 0 answers.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xstage_bench.device.cuda.rendezvous import LAUNCHERS, Place, find_place
from xstage_bench.errors import GATE, XStageError
from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.record.manifest import load_manifest, utc_now

SCHEMA_VERSION = 1
RANKS_FOLDER = "ranks"
State = Literal["done", "failed", "spare", "interrupted"]
#: Rank 0 waits this long for the others after it is done itself.
PATIENCE_S = 900.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """``ranks/rank-NNNN.json``: how one rank ended. `run` is its run folder, null for a spare rank of a host that another profiled."""

    schema_version: int = SCHEMA_VERSION
    job: str
    rank: int
    size: int
    host: str
    launcher: str
    state: State
    exit_code: int
    run: str | None
    reason: str | None
    finished: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """What rank 0 knows in the end: the ranks that reported, and those that did not."""

    ranks: list[RankStatus]
    missing: list[int]

    @property
    def exit_code(self) -> int:
        """The worst of all ranks; a rank that never reported is an error."""
        return max([1 if self.missing else 0, *(r.exit_code for r in self.ranks)])


def launched(environment: Mapping[str, str] | None = None) -> Place | None:
    """Return this process's place in a launch of several, None when it was started alone.

    A container may set RANK and WORLD_SIZE without any launcher: torchrun counts only with LOCAL_RANK.
    """
    env = os.environ if environment is None else environment
    named = [names for names in LAUNCHERS.values() if names[0] in env and names[1] in env]
    if not named or (named == [LAUNCHERS["torchrun"]] and "LOCAL_RANK" not in env):
        return None
    place = find_place(env)
    return place if place.size > 1 else None


def run_name(place: Place, host: str | None = None) -> str:
    """Return the name of this rank's run folder: its host's, with the rank where several share a host."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", host or socket.gethostname()).strip(".-") or "node"
    return f"{plain}-r{place.rank:04d}"


def finished(folder: Path) -> bool:
    """Whether a run folder is complete, so that resuming a fleet has nothing to do on its node."""
    try:
        return load_manifest(folder).complete
    except XStageError:
        return False


def take_part(
    place: Place,
    shared: Path,
    work: Callable[[Path], int],
    *,
    one_per_host: bool,
    patience_s: float = PATIENCE_S,
    say: Callable[[str], None] = lambda text: None,
) -> Gathered | None:
    """Do this rank's part and report it; on rank 0 wait for the others too.

    Parameters
    ----------
    place : Place
    shared : Path
        The folder that all ranks see.
    work : callable
        Given this rank's run folder, profiles into it and returns the exit status.
    one_per_host : bool
        Further ranks of a host do nothing: they would measure the same GPUs at the same time.
    patience_s : float
    say : callable

    Returns
    -------
    Gathered or None
        On rank 0 all that reported; None on the others.
    """
    host = socket.gethostname()
    reports = shared / RANKS_FOLDER
    reports.mkdir(parents=True, exist_ok=True)
    spare = one_per_host and place.local_rank > 0
    name = None if spare else run_name(place, host)

    def report(state: State, code: int, reason: str | None = None) -> None:
        status = RankStatus(
            job=place.job, rank=place.rank, size=place.size, host=host, launcher=place.launcher, state=state, exit_code=code, run=name,
            reason=reason, finished=utc_now(),
        )  # fmt: skip
        write_json(reports / f"rank-{place.rank:04d}.json", status)

    try:
        if name is None:
            say(f"rank {place.rank}: rank {place.rank - place.local_rank} profiles this host")
            report("spare", 0)
        else:
            code = work(shared / name)
            report("failed" if code else "done", code, "a model missed its own hold-out" if code == GATE else None)
    except XStageError as error:
        say(f"rank {place.rank}: {error.message}")
        report("failed", error.exit_code, error.message)
    except KeyboardInterrupt:
        report("interrupted", 1, "ended by a signal")
        raise
    return _gather(place, reports, patience_s, say) if place.rank == 0 else None


def _gather(place: Place, reports: Path, patience_s: float, say: Callable[[str], None]) -> Gathered:
    """Wait until every rank of this job has reported, or patience ends."""
    end = time.monotonic() + patience_s
    while True:
        found = {r.rank: r for r in map(_read, sorted(reports.glob("rank-*.json"))) if r is not None and r.job == place.job}
        missing = [r for r in range(place.size) if r not in found]
        if not missing or time.monotonic() > end:
            break
        time.sleep(_POLL_S)
    if missing:
        say(f"no report from rank(s) {', '.join(map(str, missing))} within {patience_s:g} s; their runs, if any, are judged as they are")
    return Gathered([found[r] for r in sorted(found)], missing)


def _read(path: Path) -> RankStatus | None:
    try:
        return read_json(path, RankStatus, newest=SCHEMA_VERSION)
    except XStageError:
        return None  # not this version's, or not there any more: the rank counts as missing
