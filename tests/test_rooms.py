"""The architecture: who may import what, file sizes, no private names across modules, no Python in cuda/."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "xstage_bench"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LOADED = sorted([*(ROOT / "probes").glob("*.py"), *(ROOT / "analysis").glob("*.py")])
HEAVY = {"numpy", "pandas", "scipy", "matplotlib", "pyarrow", "cupy", "jinja2"}
LONGEST_FILE = 400


parsed = cache(ast.parse)


@cache
def imports(source: str, *, top_level: bool = False) -> tuple[tuple[str, str | None], ...]:
    """Return (module, name or None) of every import that runs; those under TYPE_CHECKING do not. `top_level`: outside functions."""

    def walk(node: ast.AST) -> Iterator[tuple[str, str | None]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, None) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield from (("." * child.level + (child.module or ""), alias.name) for alias in child.names)
            elif top_level and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            else:
                yield from walk(child)

    return tuple(walk(parsed(source)))


def roots(source: str, *, top_level: bool = False) -> set[str]:
    """First parts of the modules imported."""
    return {module.partition(".")[0] for module, _ in imports(source, top_level=top_level)}


def private_uses(source: str) -> list[str]:
    """Private names that a file takes from another module, by import or as an attribute of an imported module."""
    found = [f"{m}.{n}" for m, n in imports(source) if n is not None and n.startswith("_") and not n.startswith("__")]
    modules = {n or m.partition(".")[0] for m, n in imports(source) if n is None or m.startswith("xstage_bench")}
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            name = node.attr
            if name.startswith("_") and not name.startswith("__") and node.value.id[0].islower() and node.value.id != "os":
                found.append(f"{node.value.id}.{name}")
    return found


def inside(path: Path, *rooms: str) -> bool:
    """Whether a file lies in one of these folders of the package."""
    return any(path.is_relative_to(PACKAGE / room) for room in rooms)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports anywhere, for type checking too: who only names a type depends on it as well."""
    found = set()
    for node in ast.walk(parsed(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name_of(path)}: relative import in line {node.lineno}"
            base = node.module or ""
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names}
    return found & set(MODULES)


GRAPH = {module: imported(path) for module, path in MODULES.items()}
#: A room imports only from rooms before it, and from errors and version; profile comes before the command line.
RANKS = (
    *("io", "schedule", "machine", "record", "device", "model", "workloads"),
    *("measure", "kernels", "judge", "show", "types", "triton", "profile", "cli"),
)


def rank(module: str) -> int:
    room = module.split(".")[1]
    return -1 if room in ("errors", "version") else len(RANKS) if room == "__main__" else RANKS.index(room)


def test_a_room_imports_only_from_rooms_before_it():
    known = {m: imports for m, imports in GRAPH.items() if m != "xstage_bench"}  # it names the homes of the API, and loads none
    against = [f"{m} -> {o}" for m, imports in known.items() for o in imports - {"xstage_bench"} if rank(o) > rank(m)]
    assert against == []


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other: what is left when nodes that import or are imported by nothing left are taken away."""
    left = {m: set(imports) for m, imports in graph.items()}
    while True:
        used = set().union(*left.values())
        gone = {m for m in left if not left[m] or m not in used}
        if not gone:
            return [sorted(left)] if left else []
        left = {m: imports - gone for m, imports in left.items() if m not in gone}


def test_there_are_no_circles():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert circles({m: imports - {"xstage_bench"} for m, imports in GRAPH.items() if m != "xstage_bench"}) == []


def test_every_module_is_reached_from_a_verb_the_api_a_probe_or_a_figure():
    todo = [m for m in MODULES if m.split(".")[1:2] in ([], ["cli"], ["__main__"], ["types"], ["triton"])]
    for path in LOADED:
        todo += [m for m, _ in imports(path.read_text()) if m in MODULES]
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            parent = module.rpartition(".")[0]
            todo += [*GRAPH[module], *([parent] if parent else [])]
    assert sorted(set(MODULES) - seen) == []


def test_a_public_class_name_exists_once():
    found: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in parsed(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}


#: Parts that several rooms have of the same thing: what is asked (schedule), who does it (device), how it is measured, predicted, shown.
SIBLINGS = {
    "bursts", "scenes", "scene", "tasks", "visibility", "copies", "footprint", "processes", "burst_gap", "fluid", "attention", "moe",
    "predict", "device", "document", "tensor_map", "layout", "schedule", "record", "order", "group", "run", "summary", "shapes", "check",
    "gpu", "pulls",
}  # fmt: skip


def test_files_of_different_rooms_do_not_share_a_name():
    found: dict[str, set[str]] = {}
    for module in MODULES:
        room, _, rest = module.partition(".")[2].partition(".")
        if rest and room != "cli":  # a verb is called like what it does
            found.setdefault(rest.rpartition(".")[2], set()).add("kernels" if room == "kernels" else room)
    assert {name: rooms for name, rooms in found.items() if len(rooms) > 1 and name not in SIBLINGS} == {}


def test_the_rules_see_what_they_forbid():
    bad = "import cupy\nfrom a.b import _secret\nimport json\njson._hidden\ndef f():\n    import pandas\n"
    assert roots(bad) == {"cupy", "a", "json", "pandas"}
    assert roots(bad, top_level=True) == {"cupy", "a", "json"}
    assert private_uses(bad) == ["a.b._secret", "json._hidden"]
    assert roots("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cupy\n") == {"typing"}
    assert len(SOURCES) > 20


def broken(rule: Callable[[str], object], *paths: Path) -> list[str]:
    """Files of which the rule finds something."""
    return [f"{name_of(path)}: {found}" for path in paths if (found := rule(path.read_text()))]


def test_cupy_only_in_its_rooms_and_inside_functions():
    outside = [p for p in SOURCES + LOADED if not inside(p, "device/cuda", "kernels")]
    assert broken(lambda source: roots(source) & {"cupy"}, *outside) == []
    assert broken(lambda source: roots(source, top_level=True) & {"cupy"}, *SOURCES, *LOADED) == []


def test_the_model_stands_alone():
    assert broken(lambda source: roots(source) & {"cupy", "click", "matplotlib"}, *(p for p in SOURCES if inside(p, "model"))) == []


def test_what_draws_or_sweeps_never_fits():
    def fits(source: str) -> list[tuple[str, str | None]]:
        names = {("scipy", "optimize"), ("xstage_bench.model", "calibrate")}
        return [x for x in imports(source) if x in names or x[0].startswith(("scipy.optimize", "xstage_bench.model.calibrate"))]

    assert fits("from scipy import optimize")
    assert broken(fits, *(PACKAGE / "show").rglob("*.py"), *LOADED) == []


def test_the_command_line_holds_no_logic():
    assert broken(lambda source: roots(source) & HEAVY, *(p for p in SOURCES if inside(p, "cli"))) == []


def test_looking_at_a_machine_creates_no_context():
    def makes(source: str) -> list[str]:
        calls = [f".{cu}{call}" for call in ("CtxCreate", "PrimaryCtxRetain", "SetDevice", "cudart", "runtime") for cu in ("", "cu")]
        modules = {module for module, _ in imports(source)}
        return [*(call for call in calls if call in source), *(modules & {"xstage_bench.device.cuda"}), *(roots(source) & {"cupy"})]

    assert broken(makes, *(PACKAGE / "machine").glob("*.py")) == []


def test_no_private_names_across_modules():
    assert broken(private_uses, *SOURCES, *LOADED) == []


def test_stdout_belongs_to_the_command_line():
    def prints(source: str) -> list[int]:
        body = [node for node in parsed(source).body if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
        calls = [
            n for node in body for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "print"
        ]
        return [call.lineno for call in calls if not any(keyword.arg == "file" for keyword in call.keywords)]

    assert prints("print(1)") == [1]
    assert broken(prints, *(p for p in SOURCES + LOADED if not inside(p, "cli"))) == []


def test_files_are_short():
    files = [*SOURCES, *LOADED, *(ROOT / "cuda").glob("*"), *(ROOT / "tests").rglob("*.py")]
    too_long = {name_of(p): n for p in files if (n := len(p.read_text().splitlines())) > LONGEST_FILE}
    assert too_long == {}


def test_one_importable_package():
    assert [name_of(p) for p in (ROOT / "cuda").rglob("*.py")] == []
    assert [name_of(p) for folder in ("probes", "analysis", "results", "tests") for p in (ROOT / folder).rglob("__init__.py")] == []
    assert (PACKAGE / "py.typed").exists()


def loaded_by(code: str) -> set[str]:
    """First parts of the modules that are loaded after running `code` in a fresh process."""
    script = f"import sys\n{code}\nprint('\\n'.join(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.splitlines())


def test_help_loads_nothing_heavy():
    loaded = loaded_by("from xstage_bench.cli import run\nassert run(['--help']) == 0")
    assert "click" in loaded
    assert not loaded & {*HEAVY, "pynvml", "cuda", "msgspec", "rich"}


def test_the_help_of_every_verb_loads_nothing_heavy():
    code = "from xstage_bench.cli import run\nfrom xstage_bench.cli.group import VERBS\nassert not any(run([v, '--help']) for v in VERBS)"
    assert not loaded_by(code) & HEAVY


def test_the_model_loads_neither_click_nor_matplotlib():
    names = [p.stem for p in (PACKAGE / "model").glob("*.py") if p.stem != "__init__"]
    loaded = loaded_by("\n".join(f"import xstage_bench.model.{name}" for name in names))
    assert not loaded & {"cupy", "click", "matplotlib", "rich"}
