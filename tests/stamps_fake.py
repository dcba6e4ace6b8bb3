"""A buffer as a kernel would have filled it: every warp computes, then stores, and so on; times random but for the seed."""

from __future__ import annotations

import numpy as np

from xstage_bench.measure.stamps.layout import FILE, MAGIC, NO_EVENT, SLOT, STAMP

BURST, COMPUTE, WAIT, SIGNAL = 1, 2, 3, 4
Part = tuple[int, int, int, int, int]  # kind, start, end (cycles after the warp's own first stamp), bytes of the warp, event


def pack(slots: list[dict[str, int]], parts: list[list[Part]], records: int, *, mhz: float = 1980.0) -> bytes:
    """Return the buffer of these slots (smid, block, warp, first_clock, first_ns) and what each stamped."""
    file = np.zeros(1, FILE)
    file["magic"], file["version"], file["slots"], file["records"] = MAGIC, 1, len(slots), records
    heads, table = np.zeros(len(slots), SLOT), np.zeros((len(slots), records), STAMP)
    for head, row, slot, mine in zip(heads, table, slots, parts, strict=True):
        for name, value in slot.items():
            head[name] = value
        length = max((end for _, _, end, _, _ in mine), default=0) + 50
        head["written"] = len(mine)
        head["last_clock"] = slot["first_clock"] + length
        head["last_ns"] = slot["first_ns"] + round(length * 1e3 / mhz)
        for i, (kind, start, end, size, event) in enumerate(mine[:records]):
            row[i] = (start, end, size, kind << 24 | event)
    return file.tobytes() + heads.tobytes() + table.tobytes()


def fake_buffer(
    *, sms: int = 3, warps: int = 2, bursts: int = 4, seed: int = 0, records: int = 16, bytes_per_warp: int = 2048, gap: int = 20_000
) -> bytes:
    """Return the buffer of a kernel with one block per SM, whose warps drift by some cycles; smids are 0 to sms - 1."""
    rng = np.random.default_rng(seed)
    slots, parts = [], []
    for sm in range(sms):
        clock = int(rng.integers(10**6, 10**9))
        for warp in range(warps):
            lag = int(rng.integers(0, 40))
            slots.append(
                {"smid": sm, "block": sm, "warp": warp, "first_clock": clock + lag, "first_ns": 1_764_450_000 * 10**9 + 700 * sm + lag // 2}
            )
            mine: list[Part] = []
            at = 100
            for _ in range(bursts):
                computed = at + gap
                stored = computed + 300 + int(rng.integers(0, 100))
                mine += [(COMPUTE, at, computed - 10, 0, NO_EVENT), (BURST, computed, stored, bytes_per_warp, NO_EVENT)]
                at = computed + 420
            parts.append(mine)
    return pack(slots, parts, max(records, 2 * bursts))
