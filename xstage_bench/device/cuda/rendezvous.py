"""How the processes of one measurement find each other and keep in step: ranks from the launcher, and barriers that end by themselves.

No MPI is needed: mpirun, torchrun and srun only say who is who. Rank 0 listens, the others connect, and every step is an exchange of one
JSON value per rank with a time-out. A rank that dies or hangs makes every other rank end, naming it and the step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from xstage_bench.errors import UsageError, XStageError

#: Where each launcher says rank, size and rank within the node; the first whose rank and size are both set counts. srun is last, since
#: its variables are also set around an mpirun inside an allocation.
LAUNCHERS: dict[str, tuple[str, str, str]] = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpirun (MPICH)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}
#: Equal in all ranks of a job and different in another job on the same machine: the port is drawn from it.
_JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_PORT")
_MAGIC = "xstage-rendezvous-1"
_PORTS = (20000, 12000)  # first and count: below the range that Linux gives to outgoing connections
_LONGEST_MESSAGE = 1 << 28


@dataclass(frozen=True, slots=True)
class Place:
    """One process among those of a launch."""

    rank: int
    size: int
    local_rank: int
    launcher: str
    host: str = "127.0.0.1"
    port: int = 0
    job: str = ""


class PartnerError(XStageError):
    """Another rank ended, hung or failed."""


def find_place(environment: Mapping[str, str] | None = None, rendezvous: str | None = None) -> Place:
    """Read from the environment which rank this process is and where rank 0 listens.

    Parameters
    ----------
    environment : mapping, optional
        Default ``os.environ``.
    rendezvous : str, optional
        ``HOST:PORT`` of rank 0; needed when ranks on several nodes have no MASTER_ADDR and MASTER_PORT.

    Raises
    ------
    UsageError
        No launcher, or values that are no ranks.
    """
    env = os.environ if environment is None else environment
    launcher = next((name for name, names in LAUNCHERS.items() if names[0] in env and names[1] in env), None)
    if launcher is None:
        raise UsageError("this is no launch of several processes", "mpirun -n 2 (or torchrun, srun) xstage measure processes")
    names = LAUNCHERS[launcher]
    try:
        rank, size, local = (int(env.get(n, env[names[0]])) for n in names)
    except ValueError as error:
        raise UsageError(f"{launcher}: {', '.join(names)} are no numbers: {error}") from None
    if not 0 <= rank < size:
        raise UsageError(f"{launcher} says rank {rank} of {size} processes")
    job = hashlib.blake2b("|".join([*(env.get(n, "") for n in _JOB), str(size)]).encode(), digest_size=8).hexdigest()
    host, port = "127.0.0.1", _PORTS[0] + int(job, 16) % _PORTS[1]
    if rendezvous is not None:
        host, _, digits = rendezvous.rpartition(":")
        if not host or not digits.isdigit():
            raise UsageError(f"--rendezvous {rendezvous} is not HOST:PORT", "for example --rendezvous node1:23456")
        port = int(digits)
    elif "MASTER_ADDR" in env and launcher != "torchrun":  # torchrun's own store listens on its port
        host, port = env["MASTER_ADDR"], int(env.get("MASTER_PORT", port))
    elif "MASTER_ADDR" in env:
        host = env["MASTER_ADDR"]
    return Place(rank, size, local, launcher, host, port, job)


class Channel:
    """The connections of one rank. Use as a context manager."""

    def __init__(self, place: Place, timeout_s: float = 60.0) -> None:
        self.place = place
        self._peers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + timeout_s
        if place.rank == 0:
            self._listen(deadline)
        else:
            self._connect(deadline)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the other ranks notice."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    def exchange(self, step: str, value: Any = None, timeout_s: float = 60.0) -> list[Any]:
        """Give a value and get those of all ranks, in order of rank: a barrier too.

        Raises
        ------
        PartnerError
            A rank ended, did not come within `timeout_s`, is at another step, or reported an error.
        """
        return self._everyone({"step": step, "value": value}, timeout_s)

    def fail(self, reason: str) -> None:
        """Tell the other ranks why this one ends; never raises."""
        message = {"error": f"rank {self.place.rank}: {reason}"}
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.settimeout(2.0)
                _send(peer, message)

    def _everyone(self, mine: dict[str, Any], timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        step = mine["step"]
        if self.place.rank:
            self._to(0, mine, step, deadline)
            answer = self._from(0, step, deadline + 5.0)  # rank 0 gives up first, and says on whom it waited
            return list(answer["values"])
        said = {0: mine}
        for rank in self._peers:
            said[rank] = self._from(rank, step, deadline)
            if said[rank]["step"] != step:
                self._stop(f"rank {rank} is at step '{said[rank]['step']}', rank 0 at '{step}'")
        values = [said[r]["value"] for r in range(self.place.size)]
        for rank in self._peers:
            self._to(rank, {"step": step, "values": values}, step, deadline + 5.0)
        return values

    def _stop(self, reason: str) -> NoReturn:
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                _send(peer, {"error": reason})
        raise PartnerError(reason, "see that rank's own message; all ranks must run the same command")

    def _to(self, rank: int, message: dict[str, Any], step: str, deadline: float) -> None:
        try:
            self._peers[rank].settimeout(max(0.1, deadline - time.monotonic()))
            _send(self._peers[rank], message)
        except OSError:
            # The other side may have said why before it closed.
            self._from(rank, step, time.monotonic() + 1.0)
            self._stop(f"rank {rank} ended while rank {self.place.rank} was at step '{step}'")

    def _from(self, rank: int, step: str, deadline: float) -> dict[str, Any]:
        try:
            message = _receive(self._peers[rank], deadline)
        except TimeoutError:
            self._stop(f"rank {rank} did not reach step '{step}' in time")
        except (OSError, EOFError, ValueError):
            self._stop(f"rank {rank} ended while rank {self.place.rank} waited for it at step '{step}'")
        if "error" in message:
            self._stop(str(message["error"]))
        return dict(message)

    def _listen(self, deadline: float) -> None:
        place = self.place
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((place.host, place.port))
            except OSError as error:
                raise UsageError(
                    f"rank 0 cannot listen on {place.host}:{place.port}: {error}", "choose another: --rendezvous HOST:PORT"
                ) from None
            server.listen(place.size)
            while len(self._peers) < place.size - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, place.size)) - set(self._peers))
                    self._stop(f"rank {missing[0]} of {place.size} did not connect to {place.host}:{place.port} in time")
                self._welcome(peer)
        self._peers = dict(sorted(self._peers.items()))

    def _welcome(self, peer: socket.socket) -> None:
        """Take a connection in if it is a rank of this job; strangers are dropped."""
        try:
            hello = _receive(peer, time.monotonic() + 5.0)
        except (OSError, EOFError, ValueError):
            hello = {}
        rank = hello.get("rank")
        mine = (hello.get("magic"), hello.get("job")) == (_MAGIC, self.place.job)
        if mine and isinstance(rank, int) and 0 < rank < self.place.size and rank not in self._peers:
            self._peers[rank] = peer
            _send(peer, {"magic": _MAGIC})
        else:
            peer.close()

    def _connect(self, deadline: float) -> None:
        place = self.place
        while time.monotonic() < deadline:
            try:
                peer = socket.create_connection((place.host, place.port), timeout=max(0.1, deadline - time.monotonic()))
                _send(peer, {"magic": _MAGIC, "job": place.job, "rank": place.rank})
                _receive(peer, deadline)
            except (OSError, EOFError, ValueError):
                time.sleep(0.05)
                continue
            self._peers[0] = peer
            return
        raise PartnerError(
            f"rank {place.rank} did not reach rank 0 at {place.host}:{place.port} in time", "give --rendezvous HOST:PORT of rank 0's node"
        )


def _send(peer: socket.socket, message: Any) -> None:
    raw = json.dumps(message).encode()
    peer.sendall(struct.pack("!Q", len(raw)) + raw)


def _receive(peer: socket.socket, deadline: float) -> Any:
    (size,) = struct.unpack("!Q", _exactly(peer, 8, deadline))
    if size > _LONGEST_MESSAGE:
        raise ValueError("no message of ours")
    return json.loads(_exactly(peer, size, deadline))


def _exactly(peer: socket.socket, count: int, deadline: float) -> bytes:
    out = bytearray()
    while len(out) < count:
        peer.settimeout(max(0.01, deadline - time.monotonic()))
        part = peer.recv(min(count - len(out), 1 << 20))
        if not part:
            raise EOFError
        out += part
    return bytes(out)
