"""Everything that one node can show, in one call: all ordered pairs, several GPUs at once, both fused kernels; ``make profile-node``.

Each step is a verb of the command line in a process of its own, with a share of the time. A step that fails, or is over its time, costs the
others nothing; what it measured until then is kept. Ends with one archive.

    python scripts/profile_node.py [--backend BACKEND] [--out DIR] [--budget SECONDS] [--only STEP]...
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

#: Exit statuses of a verb: it went wrong, nothing here can be measured (no failure), all is measured and a gate failed.
ERROR, WAIVED, GATE = 1, 3, 4
PATTERNS = ("both_directions", "fan_out", "incast", "all_to_all", "ring")
#: Bytes per SM and burst: within what an SM can have outstanding, over it, and far over it.
SIZES = (16384, 65536, 1048576)
#: A step may take this much longer than its share before it is ended.
GRACE_S = 20.0
MOST_RANKS = 8


@dataclass(frozen=True)
class Step:
    """One verb: its name, its words after ``xstage``, and its share of the budget."""

    name: str
    words: tuple[str, ...]
    share: float


@dataclass(frozen=True)
class Result:
    """How a step ended: ``ok``, ``waived``, ``missed`` (all is measured, a gate failed), ``failed`` or ``over its time``."""

    name: str
    words: tuple[str, ...]
    status: str
    exit_code: int | None
    wall_s: float


def steps_of(backend: str, gpus: int, out: Path, budget_s: float) -> list[Step]:
    """Return what a node with so many GPUs is asked; the last ranks of a group of 2, 4 or 8 that fits."""
    where = ("--backend", backend)
    ranks = str(max(n for n in (2, 4, MOST_RANKS) if n <= max(gpus, 2)))
    several = (*where, *_each("--pattern", PATTERNS))
    scenes = [Step(f"scenes-{n}", ("scene", *several, "--bytes", str(n), *_to(out / f"scenes-{n}.json")), 0.04) for n in SIZES]
    attention = ("--shape", "wan-14b", "--shape", "keye-vl-2-8192", "--seq", "8192", "--sp", ranks)
    layers = (*_each("--shape", ("keye-vl-2", "dsv4-flash")), "--ep", ranks, "--tokens", "2048", "--budget", f"{0.12 * budget_s:.0f}")
    fused = [
        Step("ulysses", ("fused", "ulysses", *attention, *_to(out / "ulysses.json")), 0.14),
        Step("moe", ("fused", "moe", *layers, *_to(out / "moe.json")), 0.14),
    ]
    return [
        Step("doctor", ("doctor", "--json"), 0.02),
        Step("topo", ("topo", "--json"), 0.02),
        Step("pairs", ("profile", *where, "--quick", "--budget", f"{0.3 * budget_s:.0f}", "--alone", *_to(out / "pairs")), 0.36),
        Step("at-once", ("scene", *where, "--study", "pairs_at_once", *_to(out / "at-once.json")), 0.08),
        Step("several", ("scene", *where, "--study", "several_peers", "--repetitions", "12", *_to(out / "several.json")), 0.08),
        *scenes,
        *(fused if not backend.startswith("sim") else []),
    ]


def _to(path: Path) -> tuple[str, str]:
    return "--out", str(path)


def _each(option: str, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))


def execute(step: Step, out: Path, budget_s: float) -> Result:
    """Execute one step; its output goes to files named after it."""
    begin = time.monotonic()
    with (out / f"{step.name}.out").open("w") as stdout, (out / f"{step.name}.err").open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "xstage_bench", *step.words], stdout=stdout, stderr=stderr)
        try:
            code: int | None = process.wait(timeout=step.share * budget_s + GRACE_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # the verbs keep what they have
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            code = None
    status = "over its time" if code is None else {0: "ok", WAIVED: "waived", GATE: "missed"}.get(code, "failed")
    return Result(step.name, step.words, status, code, round(time.monotonic() - begin, 1))


def gpus_here(backend: str) -> int:
    """Count the GPUs that the backend has, without measuring anything."""
    if backend.startswith("sim"):
        from xstage_bench.device.backend import open_device, resolve_backend

        with_gpus = open_device(resolve_backend(backend))
        try:
            return len(with_gpus.node().gpus)
        finally:
            with_gpus.close()
    from xstage_bench.machine.topology import read_topology

    return len(read_topology().gpus)


def main(words: list[str]) -> int:
    """Execute the steps and pack what they wrote; 1 when one failed or was over its time, else 4 when one missed a gate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--out", type=Path, default=None, help="a new folder; default: a dated one under ./xstage-runs/")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help="of all steps together (default 540)")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="only this step; repeatable")
    given = parser.parse_args(words)
    out = given.out or Path("xstage-runs") / f"node-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if out.exists():
        parser.error(f"{out} is there already; --out names a new folder")
    steps = steps_of(given.backend, gpus_here(given.backend), out, given.budget)
    unknown = set(given.only) - {s.name for s in steps}
    if unknown:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in steps)}")
    out.mkdir(parents=True)
    results = []
    for step in steps:
        if given.only and step.name not in given.only:
            continue
        results.append(execute(step, out, given.budget))
        print(f"{results[-1].name}: {results[-1].status} in {results[-1].wall_s} s", file=sys.stderr)
        (out / "steps.json").write_text(json.dumps({"schema_version": 1, "steps": [asdict(r) for r in results]}, indent=2) + "\n")
    archive = out.with_name(out.name + ".tar.gz")
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(out, arcname=out.name)
    print(archive)
    found = {r.status for r in results}
    return ERROR if found & {"failed", "over its time"} else GATE if "missed" in found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
