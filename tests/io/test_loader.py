"""The loader by path: helpers by relative import, dataclasses, names defined twice, and files that cannot be executed."""

import sys
import types
from pathlib import Path

import pytest

from xstage_bench.errors import DataError, UsageError
from xstage_bench.io import loader


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def builtin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "builtin"
    folder.mkdir()
    monkeypatch.setattr(loader, "asset_dir", lambda group: folder)
    return folder


THING = "import types\nTHING = types.SimpleNamespace(name={name!r}, value={value})\n"


def load(*extra: Path) -> dict[str, object]:
    return dict(loader.load_named("probes", "THING", types.SimpleNamespace, extra))  # type: ignore[type-var]


def test_order_is_folder_then_file_and_underscored_files_are_helpers(builtin: Path, tmp_path: Path) -> None:
    write(builtin, "b.py", THING.format(name="b", value=1))
    write(builtin, "a.py", THING.format(name="a", value=2))
    write(builtin, "_helper.py", "raise RuntimeError('a helper is not loaded by itself')\n")
    write(tmp_path / "mine", "c.py", THING.format(name="c", value=3))
    assert list(load(tmp_path / "mine")) == ["a", "b", "c"]


def test_helper_by_relative_import_and_same_helper_name_in_two_folders(builtin: Path, tmp_path: Path) -> None:
    text = "import types\nfrom ._shared import VALUE\nTHING = types.SimpleNamespace(name={!r}, value=VALUE)\n"
    mine = tmp_path / "mine"
    write(builtin, "_shared.py", "VALUE = 1\n")
    write(mine, "_shared.py", "VALUE = 2\n")
    write(builtin, "a.py", text.format("a"))
    write(mine, "b.py", text.format("b"))
    found = load(mine)
    assert (found["a"].value, found["b"].value) == (1, 2)  # type: ignore[attr-defined]
    write(mine, "_shared.py", "VALUE = 3000\n")
    assert load(mine)["b"].value == 3000, "a folder is loaded afresh, helpers included"  # type: ignore[attr-defined]


def test_dataclass_with_string_annotations_needs_the_registered_module(builtin: Path) -> None:
    code = (
        "from __future__ import annotations\nimport types\nfrom dataclasses import KW_ONLY, dataclass\nfrom typing import ClassVar\n"
        "@dataclass(slots=True)\nclass P:\n    x: int\n    _: KW_ONLY\n    y: int = 2\n    z: ClassVar[int] = 3\n"
        "THING = types.SimpleNamespace(name='a', value=P(1).y)\n"
    )
    write(builtin, "a.py", code)
    assert load()["a"].value == 2  # type: ignore[attr-defined]
    (path, module) = next(iter(loader.load_folder(builtin).items()))
    assert path == (builtin / "a.py").resolve()
    assert (sys.modules[module.__name__], module.P.__module__) == (module, module.__name__)


def test_same_name_twice_names_both_files(builtin: Path, tmp_path: Path) -> None:
    write(builtin, "a.py", THING.format(name="same", value=1))
    write(tmp_path / "mine", "b.py", THING.format(name="same", value=2))
    with pytest.raises(UsageError, match=r"'same' is defined twice.*a\.py.*b\.py"):
        load(tmp_path / "mine")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\nraise ValueError('bad number')\n", r"a\.py, line 2: ValueError: bad number"),
        ("def f(:\n", r"a\.py, line 1: SyntaxError"),
        ("import no_such_module_here\n", r"a\.py, line 1: ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("import sys\n\nsys.exit(7)\n", r"a\.py, line 3: SystemExit: 7"),
        ("from ._helper import x\n", r"_helper\.py, line 1: ZeroDivisionError"),
        ("x = 1\n", r"a\.py does not define THING"),
        ("THING = 4\n", r"a\.py defines as a int, not a SimpleNamespace, THING"),
        ("\x00", r"a\.py.*(SyntaxError|ValueError)"),
    ],
)
def test_unusable_file_is_one_clear_line(builtin: Path, text: str, says: str) -> None:
    write(builtin, "a.py", text)
    write(builtin, "_helper.py", "1 / 0\n")
    with pytest.raises(DataError, match=says) as caught:
        load()
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_bad_file_name_suggests_a_good_one(builtin: Path) -> None:
    write(builtin, "2-more.py", THING.format(name="a", value=1))
    with pytest.raises(DataError, match="needs a Python name") as caught:
        load()
    assert "x_2_more.py" in str(caught.value.hint)


def test_failed_file_leaves_no_module_behind(builtin: Path) -> None:
    write(builtin, "a.py", "raise OSError('no')\n")
    before = set(sys.modules)
    with pytest.raises(DataError):
        loader.load_folder(builtin)
    assert not [m for m in set(sys.modules) - before if m.endswith(".a")]


def test_folder_that_is_missing_or_a_file(builtin: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing"):
        load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="not a folder"):
        load(write(tmp_path, "file.py", ""))
