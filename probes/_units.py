"""The recorded map of smid to arbitration unit, for the probe `choice`: which SMs share an arbiter on the way to the link."""

from collections.abc import Sequence

# H200: found by model/node/infer.py from the probe `placement`, the same on five of six dies; on the sixth one pair sits in another
# unit (results/h200-x2/placement). A unit is two or three pairs of SMs with one share of the link, named by their lower smid. The
# halves of 12 units are weaker groups.
_H200_FIRST = "0+48+128 8+56+98 10+58+100 12+60+102 16+124+130 24+70+112 26+72+114 28+74+116 32+126 40+84 42+86 44+88+120"
_H200_SECOND = "2+50+92 4+52+94 6+54+96 14+62+104 18+64+106 20+66+108 22+68+110 30+76+118 34+78 36+80 38+82 46+90+122"
_H200_SMS = 132

Units = list[tuple[int, ...]]


def halves(gpu_name: str, smids: Sequence[int]) -> tuple[Units, Units] | None:
    """Return the two halves, each a list of units, each a tuple of smids; None for a GPU whose map is not recorded."""
    if "H200" not in gpu_name or tuple(smids) != tuple(range(_H200_SMS)):
        return None
    return _parse(_H200_FIRST), _parse(_H200_SECOND)


def spread(units: Units, count: int) -> tuple[int, ...]:
    """Choose `count` SMs one unit after the other, whole rounds first: the most units, and the fewest SMs in any of them."""
    ranked = sorted((rank, i, smid) for i, unit in enumerate(units) for rank, smid in enumerate(_apart(unit)))
    return tuple(sorted(smid for _, _, smid in ranked[:count]))


def packed(units: Units, count: int) -> tuple[int, ...]:
    """Choose `count` SMs unit by unit, the largest units first: the fewest units."""
    ordered = [smid for unit in sorted(units, key=lambda u: -len(u)) for smid in unit]
    return tuple(sorted(ordered[:count]))


def _apart(unit: tuple[int, ...]) -> tuple[int, ...]:
    """One SM of each pair first, then their neighbours."""
    return tuple(s for s in unit if s % 2 == 0) + tuple(s for s in unit if s % 2)


def _parse(half: str) -> Units:
    return [tuple(s for pair in unit.split("+") for s in (int(pair), int(pair) + 1)) for unit in half.split()]
