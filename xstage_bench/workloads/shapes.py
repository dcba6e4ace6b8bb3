"""Shapes of real models, read from the TOML files beside this module. Each entry names its source."""

from __future__ import annotations

import difflib
import math
import tomllib
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from xstage_bench.errors import DataError, UsageError

T = TypeVar("T")
Grade = Literal["A", "B"]
#: Rows and columns of one output tile of the GEMMs, and query rows of one tile of the attention.
TILE = 128


class MoEShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One mixture-of-experts layer.

    Parameters
    ----------
    name : str
        Its table in moe.toml.
    model : str
        What it is a layer of.
    hidden : int
        Width of a token's row, elements.
    inter : int
        Width of one expert after SwiGLU, elements; Linear-1 makes twice that (gate and up).
    experts, top_k : int
        Routed experts of the layer, and how many each token goes to.
    layers : int
        Such layers in the model.
    shared : int
        Experts that every token passes on its own rank; they store nothing remotely.
    shared_inter : int or None
        Their width together; None: `inter` each.
    grade : {'A', 'B'}
        A: all values seen in a source of the model itself; B: some by arithmetic on parameter counts.
    source : str
    """

    name: str = ""
    model: str
    hidden: int
    inter: int
    experts: int
    top_k: int
    layers: int
    shared: int = 0
    shared_inter: int | None = None
    grade: Grade
    source: str

    @property
    def linear1_tiles(self) -> int:
        """Output tiles of gate and up of one block of 128 tokens."""
        return -(-2 * self.inter // TILE)

    @property
    def linear2_tiles(self) -> int:
        """Output tiles of the down projection of one block of 128 tokens."""
        return -(-self.hidden // TILE)

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together, elements."""
        return self.shared * self.inter if self.shared_inter is None else self.shared_inter

    def ranks_of_a_token(self, ep: int) -> float:
        """Expected number of ranks that have an expert of a token, of `ep` with equal shares, experts drawn evenly."""
        others = self.experts - self.experts // ep
        return ep * (1 - math.comb(others, self.top_k) / math.comb(self.experts, self.top_k))


class AttentionShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Non-causal attention of one layer, at one size of picture or film.

    Parameters
    ----------
    name : str
        Its table in attention.toml.
    model : str
    heads, head_dim : int
    visual, text : int
        Tokens of both kinds in the one sequence.
    layers : int or None
        Such layers in the model; None where no source was seen.
    source : str
    """

    name: str = ""
    model: str
    heads: int
    head_dim: int = 128
    visual: int
    text: int = 0
    layers: int | None = None
    source: str

    @property
    def tokens(self) -> int:
        """Length of the sequence."""
        return self.visual + self.text


@cache
def attention_shapes() -> dict[str, AttentionShape]:
    """Every attention by name."""
    return read_shapes("attention.toml", AttentionShape)


def attention_shape(name: str) -> AttentionShape:
    """Return one attention.

    Raises
    ------
    UsageError
        There is none of that name; the nearest one is suggested.
    """
    return find(attention_shapes(), name, "attention shape")


@cache
def moe_shapes() -> dict[str, MoEShape]:
    """Every MoE layer by name."""
    return read_shapes("moe.toml", MoEShape)


def moe_shape(name: str) -> MoEShape:
    """Return one MoE layer.

    Raises
    ------
    UsageError
        There is none of that name; the nearest one is suggested.
    """
    return find(moe_shapes(), name, "MoE shape")


def read_shapes(file: str, kind: type[T]) -> dict[str, T]:
    """Read a TOML file of tables into `kind`, strictly; a table's key becomes its ``name``."""
    path = Path(__file__).with_name(file)
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        return {name: msgspec.convert({"name": name, **table}, kind) for name, table in tables.items()}
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: {error}", "install xstage-bench again, as it was installed") from None


def find(known: dict[str, T], name: str, what: str) -> T:
    """Return ``known[name]`` or refuse with the nearest name and the whole list."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(f"no {what} '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""), f"use one of: {', '.join(known)}")
