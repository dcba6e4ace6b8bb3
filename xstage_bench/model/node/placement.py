"""Which SMs share an arbiter: the measured map of smid to unit. It is structure of one die, not a parameter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from xstage_bench.errors import DataError
from xstage_bench.model.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Placement:
    """The tree below the link: units, each with an equal share of it, and their SMs, each with an equal share of the unit.

    Parameters
    ----------
    units : tuple of tuple of int
        smids of each unit, ascending; units ascend by their first smid.
    stability : float or None
        Adjusted Rand index between the maps of two halves of the data; None when the map was not measured.
    coupling : float or None
        How much one active pair of SMs prolongs another of its unit, less the same between units; as a fraction.
    measured : bool
        False for `uniform`, a map that knows nothing.
    """

    units: tuple[tuple[int, ...], ...]
    stability: float | None = None
    coupling: float | None = None
    measured: bool = True

    def __post_init__(self) -> None:
        flat = [s for unit in self.units for s in unit]
        if not flat or min(flat) < 0 or len(set(flat)) != len(flat):
            raise DataError("a placement needs at least one unit, and no smid twice", "measure the probe placement again")

    @property
    def smids(self) -> tuple[int, ...]:
        """All smids of the map, ascending."""
        return tuple(sorted(s for unit in self.units for s in unit))

    def unit_of(self, smids: ArrayLike) -> IntArray:
        """Return the unit of each smid.

        Raises
        ------
        DataError
            An smid that the map lacks.
        """
        asked = np.asarray(smids, dtype=np.int64)
        table = np.full(max(self.smids) + 1, -1, dtype=np.int64)
        for i, unit in enumerate(self.units):
            table[list(unit)] = i
        known = (asked >= 0) & (asked < table.size)
        found = np.where(known, table[np.where(known, asked, 0)], -1)
        if (found < 0).any():
            raise DataError(
                f"the placement has no SM with smid {asked[found < 0].flat[0]}", "it was measured on another GPU: calibrate again"
            )
        return found

    def members(self, smids: ArrayLike) -> IntArray:
        """Return how many of these SMs each unit holds, shape (units,)."""
        return np.bincount(self.unit_of(smids), minlength=len(self.units))


def uniform(smids: ArrayLike, unit_sms: int = 6) -> Placement:
    """Return a map for a GPU whose placement was not measured: SMs dealt round-robin to equal units.

    Parameters
    ----------
    smids : array_like of int
    unit_sms : int
        SMs per unit; 6 is what an H200's full units hold.
    """
    have = np.unique(np.asarray(smids, dtype=np.int64))
    count = max(1, round(have.size / unit_sms))
    return Placement(tuple(tuple(int(s) for s in have[i::count]) for i in range(count)), measured=False)


def adjusted_rand_index(a: ArrayLike, b: ArrayLike) -> float:
    """Agreement of two partitions: 1 when equal, about 0 by chance (Hubert and Arabie 1985).

    Parameters
    ----------
    a, b : array_like of int, shape (n,)
        Labels of the same items.
    """
    x, y = np.unique(np.asarray(a), return_inverse=True)[1], np.unique(np.asarray(b), return_inverse=True)[1]
    table = np.zeros((x.max() + 1, y.max() + 1))
    np.add.at(table, (x, y), 1)

    def pairs(counts: FloatArray) -> float:
        return float((counts * (counts - 1)).sum() / 2)

    both, first, second = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    total = x.size * (x.size - 1) / 2
    expected = first * second / total if total else 0.0
    most = (first + second) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)
