"""What the tests do not see: single small mutations of what fits, records and judges, each run against the tests of its room.

    python tests/claims/mutants.py [--sample 80] [--seed 0] [--only model/laws] [--list]

A sample of all mutations that can be made is drawn, spread over the files. A mutation that no test fails on is a survivor. Those that no
user can notice (a faster path taken sooner, a tolerance within a tolerance) stand with their reason in unseen.toml beside this file. Ends
with 1 when more than `MOST` of the others survive. Works on a copy, in forked processes that have loaded the libraries once.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutations import Mutation, mutations

ROOT = Path(__file__).resolve().parents[2]
MOST = 0.03
#: First match holds: the files that are mutated, and the tests of other rooms that are asked after those of their own.
TESTS: tuple[tuple[str, str], ...] = (
    ("judge/*.py", "test_cli_check test_cli_compare test_cli_fleet"),
    ("record/*.py", "test_limits test_fuzz"),
    ("model/node*.py", "test_sim_courses test_stamps test_tasks_predict"),
    ("model/tasks/*.py", "test_task_run test_ulysses_forecast test_published test_sim_courses"),
    ("model/advise/*.py", "test_cli_advise test_predict"),
    ("model/*.py", "test_api test_critique test_cli_verbs"),
)
#: What numba compiles: kept apart, or the next mutation would find the code of this one.
COMPILED = ("model/backpressure.py", "model/node/loop.py", "model/tasks/loop.py", "model/tasks/drain.py")
SCIPY = ("scipy.optimize", "scipy.stats", "scipy.cluster.hierarchy")
#: What no user can see: names alone.
SKIPPED = ("*/__init__.py",)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutation: ``killed``, ``survived`` or ``timed out`` (which a user would see too)."""

    mutation: Mutation
    end: str
    seconds: float


def tests_of(name: str) -> list[str]:
    """The test files of a mutated file, named from xstage_bench/: those of its room, and those of `TESTS` wherever they lie."""
    words = next((tests for pattern, tests in TESTS if fnmatch.fnmatch(name, pattern)), "").split()
    if not words:
        return []
    tests = ROOT / "tests"
    found = {word: sorted(tests.rglob(f"{word}.py")) for word in words}
    if lost := [word for word, paths in found.items() if not paths]:
        raise FileNotFoundError(f"tests that mutants.py asks are gone: {lost}")
    mine = sorted((tests / name.partition("/")[0]).rglob("test_*.py"))
    return list(dict.fromkeys(str(p.relative_to(ROOT)) for p in (*mine, *(p for paths in found.values() for p in paths))))


def all_mutations(only: str) -> dict[str, list[Mutation]]:
    """Every mutation of every file that has tests here and whose name holds `only`."""
    package = ROOT / "xstage_bench"
    names = sorted(str(p.relative_to(package)) for p in package.rglob("*.py"))
    chosen = [n for n in names if only in n and tests_of(n) and not any(fnmatch.fnmatch(n, s) for s in SKIPPED)]
    return {name: mutations(name, (package / name).read_text()) for name in chosen}


def sample(known: dict[str, list[Mutation]], count: int, seed: int) -> list[Mutation]:
    """Draw `count` of them, each as likely as any other, whatever the order of the files."""
    every = [m for found in known.values() for m in found]
    return random.Random(seed).sample(every, min(count, len(every)))


def unseen() -> dict[tuple[str, str, str], str]:
    """Mutations that nobody can notice, and why."""
    document = tomllib.loads((Path(__file__).parent / "unseen.toml").read_text())
    return {(m["file"], m["where"], m["change"]): m["why"] for m in document.get("mutation", ())}


def copy_tree(to: Path) -> Path:
    """A copy of the tree to mutate, with everything that tests read."""
    copy = to / "tree"
    leave = shutil.ignore_patterns(
        ".git", ".venv", "__pycache__", "*.egg-info", ".mypy_cache", ".ruff_cache", ".pytest_cache", "xstage-runs"
    )
    shutil.copytree(ROOT, copy, ignore=leave, symlinks=True)
    return copy


def load_libraries() -> None:
    """What every test loads, once, before the forks; nothing of the package itself."""
    for name in ("hypothesis", "matplotlib.figure", "msgspec", "pandas", "pyarrow.dataset", "pyarrow.parquet", "pytest", *SCIPY):
        importlib.import_module(name)


def run_tests(copy: Path, tests: list[str], limit_s: float, numba: Path) -> str:
    """Run tests in the copy in a forked process: ``passed``, ``failed`` or ``timed out``. `numba` keeps what is compiled."""
    child = os.fork()
    if not child:
        os.setsid()
        with open(os.devnull, "r+b") as nowhere:
            for stream in (0, 1, 2):
                os.dup2(nowhere.fileno(), stream)
        os.chdir(copy)
        os.environ.update(PYTHONPATH=str(copy), MPLBACKEND="Agg", NUMBA_CACHE_DIR=str(numba))
        sys.path[:] = [str(copy)] + [p for p in sys.path if Path(p or ".").resolve() not in (ROOT, ROOT / "tests" / "claims")]
        import pytest

        os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", *tests])))
    end, done = time.monotonic() + limit_s, 0
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
            time.sleep(0.02)
        return "timed out"
    finally:
        if not done:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def try_one(copy: Path, mutation: Mutation, limit_s: float) -> Outcome:
    """Mutate, run, and put the file back as it was, its date too."""
    path = copy / "xstage_bench" / mutation.file
    kept = path.with_suffix(".kept")
    shutil.copy2(path, kept)
    begin = time.monotonic()
    try:
        path.write_text(mutation.apply(kept.read_text()))
        numba = copy.parent / ("mutated" if mutation.file in COMPILED else "numba")
        shutil.rmtree(copy.parent / "mutated", ignore_errors=True)  # of the mutation before
        ends = (run_tests(copy, [test], limit_s, numba) for test in tests_of(mutation.file))
        end = next((e for e in ends if e != "passed"), "survived")
    finally:
        os.replace(kept, path)
    return Outcome(mutation, "killed" if end == "failed" else end, time.monotonic() - begin)


def main(argv: list[str] | None = None) -> int:
    """Draw, try, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="files whose name below xstage_bench/ holds this")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one file of tests")
    parser.add_argument("--list", action="store_true", help="show what would be tried, and try nothing")
    asked = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy and the child go too
    drawn = sample(all_mutations(asked.only), asked.sample, asked.seed)
    reasons = unseen()
    chosen = [m for m in drawn if m.key not in reasons]
    if asked.list:
        print(*map(str, drawn), sep="\n")
        return 0
    load_libraries()
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copy_tree(Path(folder))
        for test in sorted({t for m in chosen for t in tests_of(m.file)}):
            if run_tests(copy, [test], asked.limit, copy.parent / "numba") != "passed":
                print(f"{test} does not pass as it is: nothing can be said", flush=True)
                return 2
        for mutation in chosen:
            found.append(try_one(copy, mutation, asked.limit))
            print(f"{found[-1].end:9} {found[-1].seconds:6.1f} s  {mutation}", flush=True)
    survived = [o for o in found if o.end == "survived"]
    share = len(survived) / max(len(found), 1)
    print(
        f"\n{len(found)} mutations tried, {len(drawn) - len(chosen)} that nobody can notice left out; {len(survived)} survived: {share:.1%}"
    )
    print(*(str(o.mutation) for o in survived), sep="\n")
    return int(share > MOST)


if __name__ == "__main__":
    sys.exit(main())
