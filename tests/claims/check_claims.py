"""``make claims``: compute every number that the pages promise again, and say which recordings are of another instrument.

    PYTHONPATH=.:results python tests/claims/check_claims.py [--write]

``claims.toml`` is the table, ``recorded.py`` holds the functions. A page quotes a claim between two comments:
``<!-- claim:profile.rate -->370 GB/s<!-- /claim -->``. ``--write`` puts in what is computed now, and the line of each page
that names its stale recordings. Exit 1 where a page says another number, a bar is missed, or a stale claim is not marked.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import recorded

from xstage_bench.io.identity import Kernel, in_tree
from xstage_bench.io.json_file import read_json

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("claims.toml")
MARK = re.compile(r"<!-- claim:(?P<name>[\w.-]+) -->(?P<text>.*?)<!-- /claim -->", re.DOTALL)
STALE = re.compile(r"<!-- stale -->.*?<!-- /stale -->", re.DOTALL)
#: A comment that begins a line, with text behind it: to Markdown the whole line is HTML.
HIDDEN = re.compile(r"^[ >*-]*<!-- (?:claim|stale)[^\n]*?-->[^\S\n]*[^\s][^\n]{0,30}", re.MULTILINE)
NUMBER = re.compile(r"\d+(?: \d{3})*(?:\.\d+)?")
#: Relative: what another processor or library may change in a computed number. It matters where rounding turns.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Where numbers come from: a folder or file of results/, the document in it that names its kernels, and those its numbers rest on."""

    name: str
    path: Path
    kernels: tuple[str, ...]
    document: str = "manifest.json"

    def stale(self) -> str | None:
        """Say why its instrument is not known to be that of the tree; None when it is."""
        kernels = kernels_in(self.path / self.document)
        if not kernels:
            return "recorded before kernels had identities: by which instrument is unknown"
        for source in self.kernels:
            mine = [kernel for kernel in kernels if kernel.source == source]
            if not mine or not all(in_tree(kernel) for kernel in mine):
                return f"recorded with another {source}" if mine else f"names no {source} among its kernels"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One number, or a few that belong together, as the pages show them, named ``recording.claim``.

    `of` is a function of `recorded`: the recording's path and `given` in, a number or several out. `form` is the text's format, after
    `scale`; ``{:_.0f}`` separates thousands by blanks, per cent get a blank. `bar` holds ``least`` and ``most`` before the scale.
    """

    name: str
    recording: Recording
    of: Callable[..., Any]
    form: str
    given: dict[str, Any] = field(default_factory=dict)
    scale: float = 1.0
    bar: dict[str, float] = field(default_factory=dict)

    def values(self) -> tuple[Any, ...]:
        """Compute it from the recording."""
        found = self.of(self.recording.path, **self.given)
        return found if isinstance(found, tuple) else (found,)

    def shown(self, values: tuple[Any, ...], off: float = 0.0) -> str:
        """Return the text of a page, with every number off by a relative error."""
        text = self.form.format(*(v if isinstance(v, str) else v * self.scale * (1 + off) for v in values))
        return re.sub(r"(?<=\d)%", " %", re.sub(r"(?<=\d)_(?=\d)", " ", text))

    def accepts(self, text: str, values: tuple[Any, ...]) -> bool:
        """Whether a page's text is these values', each number to `TOLERANCE` before it was rounded."""
        shown = [self.shown(values, off) for off in (0.0, -TOLERANCE, TOLERANCE)]
        if NUMBER.sub("#", text) != NUMBER.sub("#", shown[0]):
            return False
        numbers = [[float(n.replace(" ", "")) for n in NUMBER.findall(one)] for one in (text, *shown)]
        return all(any(abs(said - n) <= TOLERANCE * n for n in near) for said, *near in zip(*numbers, strict=True))

    def missed(self, values: tuple[Any, ...]) -> str | None:
        """Say which bar is missed."""
        for v in values:
            if self.bar and not self.bar.get("least", -np.inf) <= v <= self.bar.get("most", np.inf):
                return f"{v:.4g} is outside the bar {self.bar}"
        return None


def kernels_in(path: Path) -> list[Kernel]:
    """Return the kernels that a document names: JSON, compressed or not, or an npz; none where it has no such key."""
    if path.suffix == ".npz":
        with np.load(path) as found:
            names = msgspec.json.decode(str(found["kernels"])) if "kernels" in found else []
    else:
        names = read_json(path, dict[str, Any]).get("kernels") or []
    return msgspec.convert(names, list[Kernel])


def load_claims(table: Path = TABLE, root: Path = ROOT, functions: Any = recorded) -> list[Claim]:
    """Read the table; `functions` holds what it names."""
    claims = []
    for section, rows in tomllib.loads(table.read_text()).items():
        for name, row in rows["claims"].items():
            own = {**rows, **row}
            recording = Recording(
                name=section,
                path=root / rows["path"],
                kernels=tuple(own["kernels"]),
                document=own.get("document", "manifest.json"),
            )
            rest = {k: v for k, v in row.items() if k in ("given", "form", "scale", "bar")}
            claims.append(Claim(name=f"{section}.{name}", recording=recording, of=getattr(functions, row["of"]), **rest))
    return claims


def pages(root: Path = ROOT) -> Iterator[Path]:
    """Yield the pages that may quote claims."""
    yield root / "README.md"
    yield from sorted((root / "docs").glob("*.md"))
    yield from sorted((root / "results").rglob("README.md"))


def stale_line(stale: Iterable[tuple[Path, str]]) -> str:
    """Return the line of a page that quotes stale recordings, by path and reason; the marks alone when it quotes none."""
    reasons: dict[str, list[str]] = {}
    for path, why in dict.fromkeys(stale):
        reasons.setdefault(why, []).append(f"`{path}`")
    text = "; ".join(f"{', '.join(paths)} ({why})" for why, paths in reasons.items())
    return f"<!-- stale -->\n{f'*Stale, not known to be by the instrument of this tree: {text}.*' if text else ''}\n<!-- /stale -->"


def with_stale_line(text: str, line: str) -> str:
    """Put the line where its marks are, else under the page's title."""
    if STALE.search(text):
        return STALE.sub(lambda _: line, text)
    title, rest = text.split("\n", 1)
    return text if line == stale_line([]) else f"{title}\n\n{line}\n{rest}"


@dataclass(frozen=True, slots=True)
class Found:
    """What was computed: per claim its values, and why its recording is stale or None."""

    claims: dict[str, Claim]
    values: dict[str, tuple[Any, ...]]
    stale: dict[str, str | None]
    root: Path

    def page(self, text: str) -> tuple[str, dict[str, list[str]], list[str]]:
        """Return a page as it should be, the texts that are wrong by claim, and what else is wrong with its marks."""
        quoted = [(m["name"], m["text"]) for m in MARK.finditer(text)]
        known = [name for name, _ in quoted if name in self.claims]
        wrong: dict[str, list[str]] = {}
        for name, shown in quoted:
            if name in self.claims and not self.claims[name].accepts(shown.strip(), self.values[name]):
                wrong.setdefault(name, []).append(shown.strip())
        loose = [f"quotes '{name}', which is no claim" for name, _ in quoted if name not in self.claims]
        if {text.count("<!-- claim:"), text.count("<!-- /claim -->")} != {len(quoted)}:
            loose.append("the marks of a claim are not in pairs")
        loose += [f"a line that begins with a comment is not read as Markdown: '{m[0].strip()}'" for m in HIDDEN.finditer(text)]
        recordings = ((self.claims[name].recording.path.relative_to(self.root), self.stale[name]) for name in known)
        new = with_stale_line(text, stale_line((path, why) for path, why in recordings if why is not None))
        if new != text:
            loose.append("does not name its stale recordings, or names fresh ones")
        return MARK.sub(self._rewritten, new), wrong, loose

    def _rewritten(self, match: re.Match[str]) -> str:
        name, text = match["name"], match["text"]
        if name not in self.claims or self.claims[name].accepts(text.strip(), self.values[name]):
            return match[0]
        end = "\n" if text.startswith("\n") else ""
        return f"<!-- claim:{name} -->{end}{self.claims[name].shown(self.values[name])}{end}<!-- /claim -->"


def check(claims: list[Claim], root: Path = ROOT, *, write: bool = False, say: Callable[[str], None] = print) -> int:
    """Compute all claims, compare or write the pages, print the table, and return the exit status."""
    found = Found({c.name: c for c in claims}, {c.name: c.values() for c in claims}, {c.name: c.recording.stale() for c in claims}, root)
    wrong: dict[str, list[str]] = {}
    loose: list[str] = []
    quoted: set[str] = set()
    for page in pages(root):
        text = page.read_text()
        new, _, _ = found.page(text)
        if write and new != text:
            page.write_text(new)
            say(f"wrote {page.relative_to(root)}")
            text = new
        _, said, rest = found.page(text)
        quoted |= {m["name"] for m in MARK.finditer(text)}
        loose += [f"{page.relative_to(root)}: {one}" for one in rest]
        for name, texts in said.items():
            wrong.setdefault(name, []).extend(f"{page.relative_to(root)} says '{one}'" for one in texts)
    for name, claim in found.claims.items():
        if name not in quoted:
            wrong.setdefault(name, []).append("no page quotes it")
        if (missed := claim.missed(found.values[name])) is not None:
            wrong.setdefault(name, []).append(missed)
    state = {n: "WRONG" if n in wrong else "stale" if found.stale[n] is not None else "ok" for n in found.claims}
    for name, claim in found.claims.items():
        say(f"{state[name]:5}  {name:34}  {claim.shown(found.values[name])}" + "".join(f"\n       {text}" for text in wrong.get(name, ())))
    for path, why in dict.fromkeys((c.recording.path.relative_to(root), found.stale[n]) for n, c in found.claims.items()):
        if why is not None:
            say(f"stale: {path}: {why}")
    for text in loose:
        say(f"WRONG  {text}  (make claims ARGS=--write)")
    counts = Counter(state.values())
    say(f"{len(state)} claims: {counts['ok']} ok, {counts['stale']} stale, {counts['WRONG']} wrong; {len(loose)} marks of pages wrong")
    return 1 if wrong or loose else 0


if __name__ == "__main__":
    if not (ROOT / "results" / "h200-x2").is_dir():
        print("results/h200-x2 is not in this tree (an sdist leaves the large runs out): nothing to recompute")
        sys.exit(0)
    sys.exit(check(load_claims(), write="--write" in sys.argv[1:]))
