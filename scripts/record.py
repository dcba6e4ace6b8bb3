"""Record anew all of two GPUs that the pages quote, a part at a time, by the product's own commands; ``make record``.

A part is a few commands, each a fresh process with a time limit. One that fails or is over its time costs the others nothing, and a
second call with the same --out does what is left. With --pack what a part left is at once added to an archive of files of
14 MiB, so that an end from outside costs only the part at work: ``cat record.tgz.* | tar xzi`` unpacks them.

    python scripts/record.py --out DIR [--only PART,...] [--backend BACKEND] [--quick] [--budget SECONDS] [--pack DIR]

Parts that begin with ``advice`` and ``judge`` need no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Exit statuses of a verb: nothing here can be measured (no failure), all is measured and a gate failed.
WAIVED, GATE = 3, 4
ENDED = {0: "ok", WAIVED: "waived", GATE: "missed a gate"}
PIECE_BYTES, PIECES = 14 << 20, 8
GRACE_S = 10.0
SANITIZER = "compute-sanitizer"
#: Drawn from the rest of a run, so not packed.
LEFT_OUT = ("report.html", "traces.parquet")
FLAVOUR_PROBES = ("flavours", "layouts", "flavour_issue", "flavour_trains", "flavour_holdout", "bulk_fences", "placement")
VISIBILITY = ("curve", "flag", "lag", "domain", "message", "torn")
#: Attention, short rows first; that of 32760 rows and more is timed in pairs too.
SHORT = (
    *("qwen-image-1024", "sd3.5-large", "sd3.5-medium", "flux.1-1024", "flux.2-dev", "ltx-2-short", "qwen-image-1328"),
    *("ltx-video-13b", "keye-vl-2-8192", "flux.1-2048", "cogvideox-5b", "wan2.2-5b", "ltx-2"),
)
LONG = (
    *("wan-1.3b-480p", "wan-14b-480p", "keye-vl-2-32768", "hunyuanvideo-1.5-480p", "hunyuanvideo-540p", "wan-14b-720p"),
    *("step-video", "hunyuanvideo-1.5-720p", "hunyuanvideo-720p"),
)


@dataclass(frozen=True)
class Part:
    """Commands of one topic, how long each may take, as how many ranks, and whether only what a model is judged by is packed."""

    commands: tuple[tuple[str, ...], ...]
    limit_s: float = 60.0
    ranks: int = 1
    lean: bool = False


def each(option: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return an option once for each value."""
    return tuple(word for value in values for word in (option, value))


def parts_of(out: Path, backend: str, model: Path, *, quick: bool) -> dict[str, Part]:
    """Return all parts in the order of their worth; words before the first ``-`` name the program."""
    fast = ("--quick",) if quick else ()
    few = ("--repetitions", "3", "--processes", "1") if quick else ()
    on = ("--backend", backend)

    def verb(*words: object) -> tuple[str, ...]:
        return ("-m", "xstage_bench", *map(str, words))

    def run(topic: str, *probes: str, pairs: str | None = None) -> tuple[str, ...]:
        return verb("run", *on, *each("--only", probes), *(("--pairs", pairs) if pairs else ()), *fast, "--out", out / topic)

    def scene(name: str, *studies: str) -> tuple[str, ...]:
        return verb("measure", "scenes", *on, *each("--study", studies), *few, "--out", out / "places" / f"{name}.json")

    def memory(kind: str) -> Part:
        program = verb("measure", "processes", "--memory", kind, "--out")
        files = [str(out / "processes" / f"{kind}{i}.json") for i in (1, 2, 3)]
        return Part(tuple((*program, file) for file in files), ranks=1 if kind == "plain" else 2)

    profile = [verb("profile", *on, *fast, "--alone", "--out", out / f"profile-{i}") for i in (1, 2, 3)]
    watched = verb("measure", "visibility", *each("--only", ("arrival", "loud")), "--pairs", "0:1,1:0", *fast)
    arrival = (*watched, "--out", str(out / "flavours/arrival.json"))
    seen = verb("measure", "visibility", *each("--only", VISIBILITY), *fast, "--out", out / "visibility/visibility.json")
    asked = verb("measure", "footprint", "--pairs")
    spread = [(*asked, f"{a}:{b}", "--out", str(out / f"footprint/footprint{a}{b}.json")) for a, b in ((0, 1), (1, 0))]
    replay = ("results/h200-x2/replay/page.py", "record")
    ulysses = (*verb("fused", "ulysses", "--model", model), *each("--sp", ("2", "4", "8")))
    lengths = (*each("--sp", ("2", "8")), "--shape", "qwen-image-1328", *each("--seq", ("6784", "6888", "6889", "6912")))

    def attention(name: str, *cases: str, limit_s: float) -> Part:
        words = ulysses[: -6 if "--sp" in cases else None]
        return Part(((*words, *cases, "--out", str(out / f"ulysses/{name}.json.gz")),), limit_s)

    checked = ("profile", *on, "--quick", "--alone", "--budget", "20", "--out", out / "checked")
    return {
        "profile-1": Part((profile[0],), 120),
        "profile-2": Part((profile[1],), 120, lean=True),
        "profile-3": Part((profile[2],), 120, lean=True),
        "flavours": Part((run("flavours", *FLAVOUR_PROBES),), 150),
        "copies": Part((verb("measure", "copies", "--out", out / "flavours/copies.json"),)),
        "arrival": Part((arrival,), 80),
        "fences": Part((run("fences", "fences"),), 60),
        "places": Part((scene("patterns", "patterns", "host"), scene("directions", "directions"))),
        "company": Part((scene("company", "pulls", "local", "producers_per_sm"), scene("gap_work", "gap_work"))),
        "visibility": Part((seen,), 120),
        "placement": Part((run("placement", "choice", "placement"),)),
        "sleep": Part((run("sleep", "sleep", pairs="0:1"),)),
        "footprint": Part(tuple(spread)),
        "plain": memory("plain"),
        "ipc": memory("ipc"),
        "nvshmem": memory("nvshmem"),
        "ulysses": attention("ulysses", "--budget", "0.4", *each("--shape", SHORT + LONG), limit_s=220),
        "pairs": attention("pairs", "--pairs", "--budget", "1", *each("--shape", LONG), limit_s=100),
        "lengths": attention("lengths", "--budget", "0.4", *lengths, limit_s=60),
        "queue": Part((("results/h200-x2/store-queue/page.py", "record", str(out / "store-queue/store_queue.json")),)),
        "pacer": Part((("results/h200-x2/pacer/page.py", "record", str(model), str(out / "pacer/pacing.npz")),), 90),
        "advice": Part((("results/h200-x2/replay/page.py", "advise", str(model), str(out / "advice.json")),), 900),
        "replay": Part(((*replay, "workloads", str(out / "workloads"), str(out / "advice.json"), "3", "4"),), 150),
        "blocks": Part(((*replay, "block", str(out / "skeleton-block-spin"), "spin", "1", "3"),), 90),
        "waves-mma": Part(((*replay, "wave", str(out / "skeleton-wave-mma"), "mma", "2", "3"),), 90),
        "waves-spin": Part(((*replay, "wave", str(out / "skeleton-wave-spin"), "spin", "2", "3"),), 90),
        "memcheck": Part(((SANITIZER, "--tool", "memcheck", sys.executable, *verb(*checked)),), 150),
        "judge": Part(tuple(verb(what, out / topic) for topic in ("flavours", "fences") for what in ("fit", "validate")), 1800),
    }


def execute(part: Part, out: Path, log: Path, deadline: float) -> str:
    """Execute the commands of a part and say how it ended: by the first that did not end well."""
    for words in part.commands:
        for target in (Path(word) for word in words if word.startswith(str(out))):
            target.parent.mkdir(parents=True, exist_ok=True)
            if words[2] in ("run", "profile") and (target / "manifest.json").exists():
                words = (*words, "--resume")
        left = min(part.limit_s, deadline - time.monotonic())
        status = call(words, part.ranks, log, left) if left > 0 else "over the budget"
        if status not in ENDED.values():
            return status
    return status


def call(words: tuple[str, ...], ranks: int, log: Path, limit_s: float) -> str:
    """Run one command, as several ranks where asked, and end all of it after its time."""
    command = words if words[0] == SANITIZER else (sys.executable, *words)
    if shutil.which(command[0]) is None:
        return f"failed (no {command[0]} here)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])}
    processes = []
    with log.open("a") as file:
        for rank in range(ranks):
            who = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
            where = {"stdout": file, "stderr": file, "cwd": ROOT, "start_new_session": True}
            processes.append(subprocess.Popen(command, env={**environment, **who}, **where))  # type: ignore[call-overload]
    end, late = time.monotonic() + limit_s, False
    for process in processes:
        for signum, patience in ((signal.SIGTERM, max(end - time.monotonic(), 0.0)), (signal.SIGKILL, GRACE_S), (None, None)):
            try:
                process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                late = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signum or signal.SIGKILL)  # the verbs keep what they have
    if late:
        return "over its time"
    codes = [process.returncode for process in processes]
    return ENDED.get(max(codes, key=lambda code: code not in ENDED), f"failed ({codes})")


def pack(out: Path, name: str, lean: bool, since: float, where: Path) -> None:
    """Add the files that a part wrote to the pieces of the archive; the log always, of a lean part no producers and figures."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as archive:
        for path in sorted(p for p in out.rglob("*") if p.is_file() and p.stat().st_mtime >= since):
            dropped = path.name in LEFT_OUT or path.suffix == ".svg" or (lean and {"producers", "figures"} & set(path.parts))
            if not dropped:
                archive.add(path, arcname=path.relative_to(out))
    where.mkdir(parents=True, exist_ok=True)
    data = stream.getvalue()
    for piece in range(PIECES):
        path = where / f"record.tgz.{piece:02d}"
        room = PIECE_BYTES - (path.stat().st_size if path.exists() else 0)
        with path.open("ab") as file:
            file.write(data[:room])
        data = data[room:]
        if not data:
            return
    print(f"{name}: {len(data)} bytes found no room in the archive", file=sys.stderr)


def main(words: list[str]) -> int:
    """Execute the parts; 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("xstage-runs/record"))
    parser.add_argument("--only", metavar="PART,...", help="these parts, in this order")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: tries the parts, records nothing worth keeping")
    parser.add_argument("--budget", type=float, default=3600.0, metavar="SECONDS", help="begin nothing and end all after so long")
    parser.add_argument("--model", type=Path, help="of replays and fused kernels; default that of profile-1")
    parser.add_argument("--pack", type=Path, metavar="DIR")
    given = parser.parse_args(words)
    out = given.out.resolve()
    parts = parts_of(out, given.backend, (given.model or out / "profile-1/model.json").resolve(), quick=given.quick)
    only = given.only.split(",") if given.only else list(parts)
    if set(only) - set(parts):
        parser.error(f"no part {', '.join(sorted(set(only) - set(parts)))}; there are {', '.join(parts)}")
    out.mkdir(parents=True, exist_ok=True)
    table = out / "parts.json"
    done: dict[str, dict[str, object]] = json.loads(table.read_text()) if table.exists() else {}
    begin = time.monotonic()
    for name in only:
        if done.get(name, {}).get("status") in ENDED.values():
            continue
        clock, since = time.monotonic(), time.time()
        status = execute(parts[name], out, out / f"{name}.log", begin + given.budget)
        done[name] = {"status": status, "wall_s": round(time.monotonic() - clock, 1), "argv": [list(c) for c in parts[name].commands]}
        print(f"{time.monotonic() - begin:6.1f} s  {name}: {status}", file=sys.stderr, flush=True)
        table.write_text(json.dumps(done, indent=1) + "\n")
        if given.pack:
            pack(out, name, parts[name].lean, since, given.pack)
    print("\n".join(f"{name:12s} {done[name]['wall_s']:>7} s  {done[name]['status']}" for name in only if name in done))
    return int(any(done[name]["status"] not in ENDED.values() for name in only if name in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
