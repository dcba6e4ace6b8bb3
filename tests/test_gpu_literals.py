"""No number of one GPU in the code: it stands in the registry (`machine/nodes`), in the simulator's presets, or is measured."""

import ast
import math
import re
from pathlib import Path

from xstage_bench.machine.facts import Fact
from xstage_bench.machine.gpus import gpus

PACKAGE = Path(__file__).parent.parent / "xstage_bench"
#: Where they belong.
PLACES = (
    "device/sim/presets.py",  # what a simulated node is calibrated on
    "device/sim/burst_gap.py",  # a made-up node whose truth is known
    "model/node/parameters.py",  # where a fit begins
)


def of_a_gpu() -> set[float]:
    """SMs, clocks and rates of every GPU of the registry; small and round ones and powers of two are too common to tell."""

    def values(part: object) -> list[float]:
        if isinstance(part, Fact):
            return [] if part.value is None else [part.value]
        if isinstance(part, dict):
            return [v for one in part.values() for v in values(one)]
        return [v for name in getattr(part, "__struct_fields__", ()) for v in values(getattr(part, name))]

    plain = {v for facts in gpus().values() for v in values(facts)}
    told = {v for v in plain if v >= 50 and v % 50 and v % 1024 and math.log2(v) % 1} | {450.0, 355.0, 370.0, 18_500.0, 26.562}
    return told | {v * 1e-3 for v in told if 1000 < v < 10_000}


def literals(source: str) -> list[tuple[int, float]]:
    """Line and value of every number."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    return [(n.lineno, float(n.value)) for n in nodes if isinstance(n.value, int | float) and not isinstance(n.value, bool)]


def cuda_literals(source: str) -> list[tuple[int, float]]:
    """The same of CUDA C++, comments and operands of assembly (``%78``) left out."""
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), source, flags=re.S)
    found = re.finditer(r"(?<![\w.%])(\d+\.?\d*(?:e\d+)?)(?=[fuUlL]*\b)", bare)
    return [(bare.count("\n", 0, m.start()) + 1, float(m[1])) for m in found]


def test_the_rule_sees_what_it_forbids():
    forbidden = of_a_gpu()
    assert {132, 78, 108, 114, 148, 1980, 1.98, 1755, 355, 478.1, 450, 396, 4072, 3913, 989.5} <= forbidden
    found = literals("def f(producers: int = 132):\n    return 1.98 * producers / 355.0\n")
    assert {v for _, v in found if v in forbidden} == {132, 1.98, 355}
    assert cuda_literals('f(132u, 1.98f, 18.5e3); // 370\nasm("%78" /* 78\n*/); x132;') == [(1, 132), (1, 1.98), (1, 18_500)]
    assert not {64, 128, 256, 512, 1000, 1024, 4096, 50, 100, 300} & forbidden


def test_no_number_of_one_gpu():
    forbidden, found = of_a_gpu(), {}
    for path in sorted([*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "cuda").glob("*.cu*")]):
        name = str(path.relative_to(PACKAGE if path.suffix == ".py" else PACKAGE.parent))
        if name not in PLACES:
            read = literals if path.suffix == ".py" else cuda_literals
            found |= {(name, value): line for line, value in read(path.read_text()) if value in forbidden}
    assert found == {}, "a number of one GPU: take it from the model or the run, else from machine/nodes"
    assert all((PACKAGE / name).exists() for name in PLACES)
