"""What the pages of recorded results are made with: one table printer, one form of an interval, and the places of a page where they go.

A folder results/NODE/TOPIC/ holds what was measured, ``page.py``, which makes tables and figure of it, and ``README.md``, the finding:

    python results/NODE/TOPIC/page.py [FOLDER]           # print the tables, of the recording beside it or in another folder
    python results/NODE/TOPIC/page.py write [FOLDER]     # put them into README.md beside page.py, and draw the figure there
    python results/NODE/TOPIC/page.py record ...         # measure again, where no verb of xstage does it

In README.md a table stands between ``<!-- table:NAME -->`` and ``<!-- /table -->``.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent
_MARK = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; None is a dash."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join("-" if cell is None else str(cell) for cell in line) + " |" for line in lines)


def number(value: float | None, digits: int = 0, scale: float = 1.0) -> str:
    """Return a number in units of `scale`, thousands apart; a dash where there is none."""
    return "-" if value is None else f"{value / scale:,.{digits}f}".replace(",", " ")


def interval(found: Any, digits: int = 0, scale: float = 1.0) -> str:
    """Return ``value (low to high)`` of an Estimate or of a mapping with these keys, in units of `scale`."""
    value, low, high = (_part(found, key) for key in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return number(value, digits, scale)
    return f"{number(value, digits, scale)} ({number(low, digits, scale)} to {number(high, digits, scale)})"


def half(found: Any, digits: int = 0, scale: float = 1.0) -> str:
    """Return ``value ± half of its interval``."""
    value, low, high = (_part(found, key) for key in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return number(value, digits, scale)
    return f"{number(value, digits, scale)} ± {number((high - low) / 2, digits, scale)}"


def per_cent(share: float | None, digits: int = 1) -> str:
    """Return a share in per cent."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def _part(found: Any, key: str) -> float | None:
    got = found.get(key) if isinstance(found, Mapping) else getattr(found, key, None)
    return None if got is None else float(got)


def origin(document: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> str:
    """Return the line that says what was measured on, when, and by which kernels.

    Parameters
    ----------
    document : dict
        Any document that a verb writes, or a manifest.
    about : dict or None
        What is asked where the document does not say.
    """
    before = document.get("environment_before") or document.get("environment") or {}
    gpus = document.get("gpus") or (document.get("node") or {}).get("gpus") or before.get("gpus") or []
    names = [str(gpu["name"]) for gpu in (gpus.values() if isinstance(gpus, Mapping) else gpus)]
    said = " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    about = about or {}
    driver = document.get("driver") or (before.get("nvml") or {}).get("driver") or about.get("driver")
    moment = document.get("created") or before.get("captured") or about.get("date")
    by: dict[str, set[str]] = {}
    for kernel in document.get("kernels") or ():
        by.setdefault(kernel["source"], set()).add(kernel["identity"])
    kernels = ", ".join(f"`{source}` " + (next(iter(ids))[:8] if len(ids) == 1 else f"({len(ids)} builds)") for source, ids in by.items())
    instrument = kernels or "kernels without identities, so by which instrument is not known"
    where = said or about.get("gpu") or about.get("gpus") or "GPUs that the document does not name"
    return f"Measured on {where}, driver {driver or 'not known'}, {str(moment)[:10] if moment else 'date not known'}; {instrument}."


def beside(folder: Path, topic: str) -> Path:
    """Return the recording of another topic of the same node; the newest where names have dates."""
    if (folder.parent / topic).is_dir() and not (folder.parent / topic / "page.py").exists():
        return folder.parent / topic
    dated = sorted(folder.parent.glob(f"????-??-??-{topic}"))
    return dated[-1] if dated else folder.parent / topic


def put(page: Path, tables: Mapping[str, str]) -> str:
    """Return the text of a page with its tables; a mark without a table, and a table without a mark, are errors."""
    text = page.read_text()
    marks = [m["name"] for m in _MARK.finditer(text)]
    if set(marks) - set(tables):
        raise ValueError(f"{page}: no table {', '.join(sorted(set(marks) - set(tables)))}")
    return _MARK.sub(lambda m: f"{m[1]}{tables[m['name']]}\n{m[3]}", text)


def main(page: str, tables: Callable[[Path], Mapping[str, str]], draw: Callable[[Path, Path], object] | None = None, **verbs: Any) -> None:
    """Serve the command line of a page.

    Parameters
    ----------
    page : str
        ``__file__`` of the page.
    tables : callable
        Folder of the recording to tables by name.
    draw : callable
        Folder of the recording, and folder that the figure goes to.
    verbs : callable
        Anything else the page does, by the word that asks for it.
    """
    home, words = Path(page).resolve().parent, sys.argv[1:]
    if words and words[0] in verbs:
        verbs[words[0]](*words[1:])
        return
    write = bool(words) and words[0] == "write"
    folder = Path(words[write]).resolve() if len(words) > write else home
    made = tables(folder)
    if not write:
        print("\n\n".join(f"{name}\n\n{text}" for name, text in made.items()))
        return
    (home / "README.md").write_text(put(home / "README.md", made))
    if draw is not None:
        draw(folder, home)


def load(topic: str | Path) -> ModuleType:
    """Return a page as a module: ``h200-x2/visibility``, or the path of another file beside one."""
    path = ROOT / topic
    path = path / "page.py" if path.is_dir() else path.resolve()
    name = "results_" + re.sub(r"\W", "_", str(path.relative_to(ROOT).with_suffix("")))
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
