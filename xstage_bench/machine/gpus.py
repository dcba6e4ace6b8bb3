"""What is known of each kind of GPU and of its link, with where it comes from: the registry, and numbers tuned on one GPU.

A run's own numbers come first, then those of the registry. What neither has is a `Default`, named in what is predicted from it.

The registry is one TOML file for each kind of GPU and link: those of the package in ``nodes/``, those of other packages that name a
package of their own in the entry points ``xstage_bench.nodes``, then the user's.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from xstage_bench.errors import DataError, UsageError
from xstage_bench.machine.facts import GpuFacts

#: Whose recordings ship with the package: defaults were fitted to them.
REFERENCE_GPU, REFERENCE_NODE = "NVIDIA H200", "h200-nv18"
#: What the simulator adds to the name of the GPU that it imitates.
_SIMULATED = " (simulated)"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """One entry of the registry: its name, whose it is (``package``, ``user``, or the other package's name), and its file."""

    name: str
    origin: str
    path: Path
    facts: GpuFacts

    @property
    def model_path(self) -> Path | None:
        """Where its fitted model lies; None where it has none."""
        if self.facts.model is None:
            return None
        if self.origin == "package":
            from xstage_bench.io.assets import asset_dir

            return asset_dir("results") / self.facts.model
        return self.path.parent / self.facts.model


def user_folder() -> Path:
    """Return where a user's own entries lie: ``XDG_CONFIG_HOME``, or ``~/.config``."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "xstage-bench" / "nodes"


def is_name(text: str) -> bool:
    """Whether a text can be the name of an entry."""
    return _NAME.fullmatch(text) is not None


def read_entry(path: Path, origin: str) -> RegisteredNode:
    """Read one file of the registry.

    Raises
    ------
    DataError
        It is no TOML, no entry, or its name is none.
    """
    try:
        if not is_name(path.stem):
            raise ValueError("a name has small letters, digits, dots and dashes")
        return RegisteredNode(path.stem, origin, path, msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), GpuFacts))
    except (msgspec.ValidationError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        hint = "reinstall: pip install --force-reinstall xstage-bench" if origin == "package" else f"mend it, or remove {path}"
        raise DataError(f"{path}: {error}", hint) from None


@cache
def _shipped() -> dict[str, RegisteredNode]:
    return {p.stem: read_entry(p, "package") for p in sorted(Path(__file__).with_name("nodes").glob("*.toml"))}


def _added() -> dict[str, RegisteredNode]:
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    folders = [(user_folder(), "user")]
    for point in entry_points(group="xstage_bench.nodes"):
        spec = find_spec(point.value)  # its code is not run
        folders += [(Path(where), point.name) for where in (spec and spec.submodule_search_locations) or ()]
    found = [read_entry(path, origin) for folder, origin in reversed(folders) for path in sorted(folder.glob("*.toml"))]
    return {e.name: e for e in found}


def entry_names() -> list[str]:
    """Return the names of all entries, without reading what the user or other packages added beyond its name."""
    return sorted({*_shipped(), *(p.stem for p in user_folder().glob("*.toml"))})


def entries() -> dict[str, RegisteredNode]:
    """Return every entry of the registry by name. Those of the package cannot be replaced, so that a name means the same everywhere."""
    return {**_added(), **_shipped()}


def find_entry(name: str) -> RegisteredNode:
    """Return one entry by name.

    Raises
    ------
    UsageError
        There is none; the hint lists those there are.
    """
    found = _shipped().get(name) or _added().get(name)
    if found is None:
        raise UsageError(f"there is no node '{name}' in the registry", f"xstage nodes; there are: {', '.join(entries())}")
    return found


def gpus() -> dict[str, GpuFacts]:
    """Every kind of GPU of the registry, by the name of its entry."""
    return {name: entry.facts for name, entry in entries().items()}


def kind_of(name: str) -> str:
    """Return the kind of GPU that a name says: that of a simulated GPU is the kind that it imitates."""
    return name.removesuffix(_SIMULATED)


def find_gpu(name: str) -> GpuFacts | None:
    """Return what the registry has of a GPU by the name that NVML or a model says; None where it has nothing."""
    for known in (_shipped, _added):  # what others added is only read where it is needed
        for entry in known().values():
            if kind_of(name) in entry.facts.names:
                return entry.facts
    return None


def reference_gpu() -> GpuFacts:
    """Return what the registry has of the GPU whose recordings ship with the package."""
    return _shipped()[REFERENCE_NODE].facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """A number that a run does not measure and that was fitted or chosen on recordings of one kind of GPU.

    Parameters
    ----------
    name : str
        What it is, in a few words.
    value : float
    unit : str
    low, high : float or None
        Range in which the recordings leave it; None where they say nothing.
    source : str
        What it was fitted to.
    gpu : str
        On which GPU.
    """

    name: str
    value: float
    unit: str
    source: str
    low: float | None = None
    high: float | None = None
    gpu: str = REFERENCE_GPU

    def words(self) -> str:
        """Say it with its range."""
        within = "" if self.low is None or self.high is None else f" ({self.low:g} to {self.high:g})"
        return f"{self.name} {self.value:g}{within}{self.unit and ' ' + self.unit}"


def borrowed(here: str, defaults: Iterable[Default]) -> str | None:
    """Say which of these defaults come from another kind of GPU than the one named; None where none does."""
    found = [d for d in defaults if kind_of(here) != d.gpu]
    if not found:
        return None
    return f"measured on {', '.join(dict.fromkeys(d.gpu for d in found))}; this is {here}: " + ", ".join(d.words() for d in found)


def tuned_document(here: Iterable[str], defaults: Iterable[Default]) -> dict[str, Any]:
    """Return the defaults that a document rests on as plain values, with the note that it needs on another kind of GPU (else null)."""
    names, defaults = list(dict.fromkeys(here)), tuple(defaults)
    notes = [note for name in names if (note := borrowed(name, defaults)) is not None]
    return {"gpus": names, "note": "; ".join(notes) or None, "constants": [asdict(d) for d in defaults]}
