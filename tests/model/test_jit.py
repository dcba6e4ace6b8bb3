"""Functions of several modules compiled as one program: what is kept on disk must not outlive a change of any of them."""

import importlib.util
import linecache
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from xstage_bench.errors import UsageError
from xstage_bench.model.jit import compiled, compiled_if, is_kept

CALLEE, ENTRY = (
    "def part(x):\n    return x + {more}\n\n\nCOMPILED = ('part',)\n",
    "def whole(x):\n    return 2 * part(x)\n\n\nCOMPILED = ('whole',)\n",
)


def load(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    os.utime(path, (1, 1))  # numba tells by time and size whether a file has changed
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def test_a_change_of_a_callee_in_another_file_is_compiled_again(tmp_path: Path) -> None:
    pytest.importorskip("numba", exc_type=ImportError)
    for more in (1, 5):
        linecache.clearcache()
        modules = load(tmp_path / "jit_callee.py", CALLEE.format(more=more)), load(tmp_path / "jit_entry.py", ENTRY)
        assert not is_kept(modules, "whole"), "nothing of these sources is on disk"
        assert compiled(modules, "whole")(10) == 2 * (10 + more)
        is_kept.cache_clear()
        assert is_kept(modules, "whole")
    assert len(list((tmp_path / "__pycache__").glob("*.nbi"))) == 2, "both are kept, under names of their own"


def test_what_cannot_be_compiled_is_an_error_only_where_it_is_wanted() -> None:
    def make():
        raise ImportError("no numba")

    assert compiled_if(None, True, make) is compiled_if(False, True, make) is None
    with pytest.raises(UsageError, match="no numba") as caught:
        compiled_if(True, False, make)
    assert "pip install" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("wanted", "worth_it", "made"), [(None, True, True), (None, False, False), (True, False, True), (False, True, False)]
)
def test_whether_to_compile(wanted: bool | None, worth_it: bool, made: bool) -> None:
    assert (compiled_if(wanted, worth_it, lambda: abs) is abs) == made
