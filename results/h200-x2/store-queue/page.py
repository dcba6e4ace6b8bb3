"""Where a stall shows and what else has to wait: ``cuda/store_queue.cu`` (``page.py [write] [FOLDER]``).

``page.py record OUT.json`` measures on two GPUs: every instruction after 4 to 32 stores of each of four warps, on 1, 33, 66 and all SMs.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tables import main, number, origin, table

from xstage_bench.device.cuda.compile import compiled
from xstage_bench.device.cuda.gpu import CudaGpu
from xstage_bench.io.identity import plain
from xstage_bench.io.json_file import read_json, write_json
from xstage_bench.machine.environment import snapshot

AFTER = ("nothing", "shuffle", "shared load", "global load", "overwrite", "bulk load")
#: By bulk stores only reads are asked for: their stores take no register and no place in the SM's queue.
VARIANTS = (*((after, 0) for after in range(len(AFTER))), (0, 1), (3, 1), (5, 1))
STORES, ACTIVE = (4, 8, 16, 32), (1, 33, 66, 132)
#: So many SMs store while the others read only: every fourth, and one of each two neighbours.
WATCHED = (33, 66)
WARPS, ROUNDS, STORE_BYTES, REGIONS = 4, 10, 512, 4
PERIOD_NS, BYSTANDER_CYCLES = 120_000, 60_000
SHARED_BYTES = 1 << 17  # one CTA on each SM
PLAN = np.dtype(
    [(n, "<u8") for n in ("destination", "begin_ns", "period_ns", "here", "report")]
    + [(n, "<u4") for n in ("active", "regions", "salt", "bystander_cycles", "watch", "pad")]
)
ROUND = np.dtype(
    [(n, "<u4", WARPS) for n in ("first", "stored", "then", "fenced")]
    + [(n, "<u4") for n in ("bystander_first", "bystander_longest", "bystander_last_slow", "smid")]
)

WHAT = (
    "cycles from the SM's first warp's first store to the last warp's clock read: right after its last store, after one more instruction, "
    "after a fence of the CTA (bulk stores: when their sources are free); a warp that stores nothing executes the same instruction all the "
    "time: the longest, and when the last that took over 400 cycles ended; medians over SMs and "
    f"{ROUNDS - 1} rounds of one launch, {PERIOD_NS} ns apart; others_longest_cycles: on SMs that store nothing"
)


def cycles(rounds: NDArray[Any]) -> dict[str, float]:
    """Return medians over SMs and rounds, in cycles after the SM's first warp began.

    Parameters
    ----------
    rounds : ndarray of ROUND, shape (SMs, rounds)
        The first round is left out.
    """
    used = rounds[:, 1:]
    first = used["first"].min(axis=2)[..., None]  # an SM's four clocks do not wrap between each other within a round
    out = {f"{name}_cycles": float(np.median((used[name] - first).astype(np.int32).max(axis=2))) for name in ("stored", "then", "fenced")}
    out["bystander_longest_cycles"] = float(np.median(used["bystander_longest"]))
    out["bystander_last_slow_cycles"] = float(np.median((used["bystander_last_slow"] - first[..., 0]).astype(np.int32)))
    return out


def record(path: str) -> None:
    """Execute everything once on GPU 0, to memory of GPU 1, and write the medians; every byte of the last rounds is read back."""
    here, there = CudaGpu(0), CudaGpu(1)
    here.reach((1,))
    sms, words = here.sms, REGIONS * here.sms * WARPS * max(STORES) * STORE_BYTES // 4
    place, report = here.zeroed(256, "here"), here.zeroed(here.sms * ROUNDS * ROUND.itemsize, "report")
    rows: list[dict[str, Any]] = []
    for stores in STORES:
        for after, bulk in VARIANTS:
            name = AFTER[after]
            defines = {"XSTAGE_STORES": str(stores), "XSTAGE_AFTER": str(after), "XSTAGE_BULK": str(bulk)}
            kernels = here.load("store_queue.cu", {"store_queue": SHARED_BYTES, "store_queue_now": 0}, defines)
            for active in (min(a, sms) for a in ACTIVE):
                to, salt = there.zeroed(4 * words, "there"), 1000 * (len(rows) + 1)
                here.launch(kernels["store_queue_now"], (1,), 1, (np.uint64(report),))
                here.synchronize()
                begin_ns = int(here.downloaded("report", np.uint64)[0]) + 5_000_000
                addresses = (to, begin_ns, PERIOD_NS, place, report)
                plan = np.array([(*addresses, active, REGIONS, salt, BYSTANDER_CYCLES, int(active in WATCHED), 0)], PLAN)
                here.launch(kernels["store_queue"], (sms,), 32 * (WARPS + 1), (plan,))
                here.synchronize()
                found = here.downloaded("report", ROUND, (sms, ROUNDS))
                used = np.array([s for s in range(sms) if s * active % sms < active])
                what = {
                    "sms": active,
                    "warps": WARPS,
                    "stores_per_warp": stores,
                    "by": "bulk" if bulk else "st.v4",
                    "after_the_stores": name,
                }
                wrong = _wrong(there.downloaded("there", np.uint32, words), used, salt, stores, sms)
                rows.append({**what, **cycles(found[used]), "wrong_words": wrong})
                if active in WATCHED:
                    others = np.setdiff1d(np.arange(sms), used)
                    longest = np.median(found["bystander_longest"][:, 1:], axis=1)
                    rows[-1]["others_longest_cycles"] = float(np.median(longest[others]))
                    rows[-1]["longest_by_smid"] = np.rint(longest).astype(int).tolist()
                print(rows[-1], flush=True)
    document = {
        "schema_version": 2,
        "what": WHAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": snapshot(),
        "kernels": plain(compiled()),
        "rows": rows,
    }
    write_json(Path(path), document)


def _wrong(memory: NDArray[np.uint32], active: NDArray[np.int64], salt: int, stores: int, sms: int) -> int:
    """Count words of the last rounds that are not what their SM, warp and lane stored there."""
    size = REGIONS * sms * WARPS * stores * STORE_BYTES // 4
    have = memory[:size].reshape(REGIONS, sms, WARPS, stores, 32, 4)
    expected = np.zeros_like(have)
    last = salt + np.array([max(r for r in range(ROUNDS) if r % REGIONS == region) for region in range(REGIONS)])
    each = np.broadcast_arrays(last[:, None, None, None, None], active[:, None, None, None], np.arange(WARPS)[:, None, None], np.arange(32))
    expected[:, active] = np.broadcast_to(np.stack(each, axis=-1), (REGIONS, active.size, WARPS, stores, 32, 4))
    return int((have != expected).sum())


def tables(folder: Path) -> dict[str, str]:
    """Return every table; ``all`` has every variant."""
    document = read_json(folder / "store_queue.json", dict[str, Any])
    rows = sorted(document["rows"], key=lambda r: (r["sms"], r["stores_per_warp"]))
    names = ("stored", "then", "fenced", "bystander_longest", "bystander_last_slow")
    head = ("SMs", "stores per warp", "by", "then", "after the last store", "after it", "after a fence", "beside: longest", "last slow")
    every = [
        (r["sms"], r["stores_per_warp"], r.get("by", "st.v4"), r["after_the_stores"], *(number(r[f"{n}_cycles"]) for n in names))
        for r in rows
    ]
    return {"when": origin(document), "queue": queue(rows), "beside": bystander(rows), "all": table(head, every)}


def _of(rows: list[dict[str, Any]], sms: int, stores: int, by: str = "st.v4") -> dict[str, dict[str, Any]]:
    return {r["after_the_stores"]: r for r in rows if (r["sms"], r["stores_per_warp"], r.get("by", "st.v4")) == (sms, stores, by)}


def queue(rows: list[dict[str, Any]]) -> str:
    """Cycles until the last store is issued, until the SM has taken all, and until one more instruction is through."""
    then = ("shuffle", "shared load", "overwrite", "global load")
    lines = []
    for sms in (1, max(r["sms"] for r in rows)):
        for stores in STORES:
            found = _of(rows, sms, stores)
            cells = (number(found["nothing"][f"{n}_cycles"]) for n in ("stored", "fenced"))
            lines.append((sms, stores, *cells, *(number(found[name]["then_cycles"]) for name in then)))
    head = ("a shuffle", "a read of shared memory", "a register is overwritten", "a read from L2")
    return table(("SMs", "stores per warp", "issued after, cycles", "taken after", *head), lines)


def bystander(rows: list[dict[str, Any]]) -> str:
    """Return the longest read by a warp that stores nothing on an SM that does, all SMs storing."""
    sms, lines = max(r["sms"] for r in rows), []
    for stores in STORES:
        found = [
            _of(rows, sms, stores, by)[name]["bystander_longest_cycles"]
            for by in ("st.v4", "bulk")
            for name in ("global load", "bulk load")
        ]
        lines.append((stores * WARPS * STORE_BYTES >> 10, *map(number, found)))
    head = (f"{by}: {who}" for by in ("16-byte stores", "bulk stores") for who in ("read from L2", "read by the copy engine"))
    return table(("KiB stored per SM", *head), lines)


if __name__ == "__main__":
    main(__file__, tables, record=record)
