"""Every reader of files and of NVML, each fed with bytes: nothing but our own errors may come out.

Used by tests/test_fuzz.py with hypothesis, and as a script with atheris: ``python tests/fuzz_readers.py CORPUS -runs=20000``.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_nvml import FakeNvml

from xstage_bench.errors import XStageError

ROOT = Path(__file__).parent.parent
FOLDER = Path(tempfile.mkdtemp(prefix="xstage-fuzz-"))
REFERENCE = ROOT / "results" / "reference" / "h200-nv18"
PART = Path(__file__).parent / "data" / "run"


def schedule_json(data: bytes) -> None:
    from xstage_bench.schedule.burst_files import load_bursts

    (FOLDER / "s.json").write_bytes(data)
    load_bursts(FOLDER / "s.json")


def schedule_csv(data: bytes) -> None:
    from xstage_bench.schedule.burst_files import load_bursts

    (FOLDER / "s.csv").write_bytes(data)
    load_bursts(FOLDER / "s.csv")


def limits(data: bytes) -> None:
    from xstage_bench.judge.limits import load_limits

    (FOLDER / "l.toml").write_bytes(data)
    load_limits(FOLDER / "l.toml")


def manifest(data: bytes) -> None:
    from xstage_bench.record.reader import load_run

    (FOLDER / "run").mkdir(exist_ok=True)
    (FOLDER / "run" / "manifest.json").write_bytes(data)
    load_run(FOLDER / "run")


def parquet(data: bytes) -> None:
    from xstage_bench.record.reader import load_run, schedules_of

    folder = FOLDER / "parts"
    if not folder.exists():
        (folder / "samples").mkdir(parents=True)
        shutil.copy(PART / "manifest.json", folder)
    (folder / "samples" / "part-0000.parquet").write_bytes(data)
    schedules_of(load_run(folder).samples())


def model(data: bytes) -> None:
    from xstage_bench.judge.compare import Side, compare
    from xstage_bench.model.document import load_model

    (FOLDER / "model.json").write_bytes(data)
    found = load_model(FOLDER / "model.json")
    compare(Side("a", found, None), Side("b", found, None))


def topology(data: bytes) -> None:
    """A driver that answers what the bytes say: other types, other numbers, errors."""
    from xstage_bench.machine.doctor import examine
    from xstage_bench.machine.environment import snapshot
    from xstage_bench.machine.topology import read_topology

    rng = random.Random(data)
    answers = [None, -1, 0, 1, 2**63, "", "N/A", b"\xff", [], [1], {}, 1.5, float("nan")]
    names = [n for n in dir(FakeNvml) if n.startswith("nvmlDevice") or n.startswith("nvmlSystem")]
    strange = {n: rng.choice(answers) for n in names if rng.random() < 0.15 and n != "nvmlDeviceGetHandleByIndex"}

    class Strange(FakeNvml):
        def __getattribute__(self, name: str) -> Any:
            if name in strange:
                return lambda *a: strange[name]
            return super().__getattribute__(name)

    nvml = Strange()
    found = read_topology(nvml, {}, bus=lambda: [])
    examine(found, snapshot(nvml, {}), has_cupy=True)


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], bytes]]] = {
    "schedule.json": (
        schedule_json,
        lambda: b'{"schema_version": 1, "schedules": [{"bursts": [{"bytes": 2048}], "producers": 4, "warps": 1}]}',
    ),
    "schedule.csv": (schedule_csv, lambda: b"schedule,burst,bytes,gap_cycles,producers,warps\na,0,2048,0,4,1\n"),
    "limits.toml": (limits, lambda: b"schema_version = 1\n[pairs]\nt0_ns = { max = 600 }\n"),
    "manifest.json": (manifest, lambda: (PART / "manifest.json").read_bytes()),
    "part.parquet": (parquet, lambda: (PART / "samples" / "part-0000.parquet").read_bytes()),
    "model.json": (model, lambda: (REFERENCE / "model.json").read_bytes()[:4000]),
    "topology": (topology, lambda: b"x"),
}


def feed(name: str, data: bytes) -> bool:
    """Feed one reader; whether it took the bytes. Anything but our own errors goes through."""
    try:
        TARGETS[name][0](data)
    except XStageError:
        return False
    return True


def main() -> None:
    """Fuzz all readers with atheris; the first byte chooses."""
    import atheris

    names = list(TARGETS)

    def one(data: bytes) -> None:
        if data:
            feed(names[data[0] % len(names)], data[1:])

    with atheris.instrument_imports(include=["xstage_bench"]):
        for name in names:
            feed(name, TARGETS[name][1]())
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
