"""The table of store flavours: one entry here and one inline function in ``cuda/flavours.cuh`` each.

An *operation* is what one warp issues at once: a store or reduction by its 32 lanes (a warp-store), or one bulk copy that an elected
lane starts. `warp_store_bytes` is its size whichever it is, so that schedules count operations of any flavour alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xstage_bench.errors import DataError, UsageError

Kind = Literal["store", "reduce", "bulk", "bulk_reduce", "tensor"]
KINDS: tuple[Kind, ...] = ("store", "reduce", "bulk", "bulk_reduce", "tensor")
LANES = 32
_PLAIN = ("sm_80", "sm_90", "sm_100")
_HOPPER = ("sm_90", "sm_100")


@dataclass(frozen=True, slots=True)
class Flavour:
    """One way to store.

    Parameters
    ----------
    name : str
        As in schedules and sample files.
    function : str
        Its inline function in ``cuda/flavours.cuh``, or in the user's own `source`.
    bytes : int
        Per lane for stores and reductions, per operation for bulk copies.
    kind : {'store', 'reduce', 'bulk', 'bulk_reduce', 'tensor'}
        A tensor store is a bulk copy of a box of 128-byte rows, described by a tensor map.
        Reductions are verified by integer sums: their slots are zeroed before each burst, outside every timed window.
    architectures : tuple of str
        For which it compiles, each with the machine code `sass`.
    sass : str
        Regular expression of its instruction in nvdisasm's listing.
    alias_of : str, optional
        The flavour whose burst is the same machine code on every architecture: one row, not two (a test compares).
    element : str
        What a reduction adds: ``f32`` or ``bf16x2``.
    source : str, optional
        The text of the user's own file.
    """

    name: str
    function: str
    bytes: int
    kind: Kind
    architectures: tuple[str, ...]
    sass: str
    alias_of: str | None = None
    element: str = ""
    source: str | None = None

    @property
    def bulk(self) -> bool:
        """True when one lane starts a copy out of shared memory."""
        return self.kind in ("bulk", "bulk_reduce", "tensor")

    @property
    def reduces(self) -> bool:
        """True when what is stored is added to what was there."""
        return self.kind in ("reduce", "bulk_reduce")

    @property
    def warp_store_bytes(self) -> int:
        """Bytes of one operation, all 32 lanes active."""
        return self.bytes if self.bulk else LANES * self.bytes

    @property
    def group(self) -> int:
        """Operations of one unrolled group of the measured loop; a burst starts on a group's boundary."""
        return 1 if self.bulk else 4


def _bulk(size: int) -> Flavour:
    return Flavour(f"bulk.{size}", "bulk_store", size, "bulk", _HOPPER, r"UBLKCP\.G\.S|UBLKCP")


def _bulk_reduce(size: int) -> Flavour:
    return Flavour(f"bulkred.f32.{size}", "bulk_reduce_f32", size, "bulk_reduce", _HOPPER, r"UBLKRED", element="f32")


def _tensor(size: int) -> Flavour:
    return Flavour(f"tensor.{size}", "tensor_store", size, "tensor", _HOPPER, r"UTMASTG")


BULK_BYTES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
BULK_REDUCE_BYTES = (512, 2048, 8192)
#: Boxes of 64 bf16 columns and 16, 64 or 128 rows.
TENSOR_BYTES = (2048, 8192, 16384)

_TABLE: tuple[Flavour, ...] = (
    Flavour("st.v4", "st_v4", 16, "store", _PLAIN, r"STG\.E\.128 "),
    Flavour("st.v2", "st_v2", 8, "store", _PLAIN, r"STG\.E\.64 "),
    Flavour("st.b32", "st_b32", 4, "store", _PLAIN, r"STG\.E "),
    Flavour("st.v4.cs", "st_v4_cs", 16, "store", _PLAIN, r"STG\.E\.EF\.128 "),
    Flavour("st.v4.cg", "st_v4_cg", 16, "store", _PLAIN, r"STG\.E\.128\.STRONG\.GPU "),
    Flavour("st.v4.relaxed.sys", "st_v4_relaxed_sys", 16, "store", _PLAIN, r"STG\.E\.128\.STRONG\.SYS "),
    Flavour("st.v4.wt", "st_v4_wt", 16, "store", _PLAIN, r"STG\.E\.128\.STRONG\.SYS ", alias_of="st.v4.relaxed.sys"),
    Flavour("st.v4.volatile", "st_v4_volatile", 16, "store", _PLAIN, r"STG\.E\.128\.STRONG\.SYS ", alias_of="st.v4.relaxed.sys"),
    Flavour("st.v4.release.sys", "st_v4_release_sys", 16, "store", _PLAIN, r"STG\.E\.128\.STRONG\.SYS "),
    Flavour("st.v8", "st_v8", 32, "store", ("sm_100",), r"STG\.E\.ENL2\.256 "),
    Flavour("red.f32", "red_f32", 4, "reduce", _PLAIN, r"REDG?\.E\.ADD\.F32", element="f32"),
    Flavour("red.v4.f32", "red_v4_f32", 16, "reduce", _HOPPER, r"REDG?\.E\.ADD\.F32x4|REDG?\.E\.ADD\.F32", element="f32"),
    Flavour("red.bf16x2", "red_bf16x2", 4, "reduce", _HOPPER, r"REDG?\.E\.ADD\.BF16", element="bf16x2"),
    Flavour("red.v4.bf16x2", "red_v4_bf16x2", 16, "reduce", _HOPPER, r"REDG?\.E\.ADD\.BF16", element="bf16x2"),
    *(_bulk(size) for size in BULK_BYTES),
    *(_bulk_reduce(size) for size in BULK_REDUCE_BYTES),
    *(_tensor(size) for size in TENSOR_BYTES),
)

FLAVOURS: dict[str, Flavour] = {f.name: f for f in _TABLE}
#: Bytes of one operation of each flavour.
WARP_STORE_BYTES: dict[str, int] = {f.name: f.warp_store_bytes for f in _TABLE}


def for_architecture(arch: str) -> tuple[str, ...]:
    """Names of the flavours that compile for a real architecture such as ``sm_90``: declared for one of its generation or an older one."""
    number = int(arch.removeprefix("sm_").rstrip("af"))
    return tuple(f.name for f in FLAVOURS.values() if min(int(a.removeprefix("sm_")) for a in f.architectures) <= number)


def register(flavour: Flavour) -> None:
    """Make a flavour known by its name, in schedules too; `UsageError` when the name is taken by another one."""
    enter(FLAVOURS, flavour, "flavour")
    WARP_STORE_BYTES[flavour.name] = flavour.warp_store_bytes


def enter(table: dict[str, Any], own: Any, what: str) -> None:
    """Put something of the user's own into its table; `UsageError` when its name is taken by another one."""
    if table.setdefault(own.name, own) != own:
        raise UsageError(f"there is a {what} '{own.name}' already", "give yours another name")


def recorded_flavour(facts: dict[str, Any]) -> Flavour:
    """Rebuild a flavour of the user's own from a manifest; `DataError` when it describes none."""
    try:
        return Flavour(**{**facts, "architectures": tuple(facts["architectures"])})
    except (TypeError, KeyError) as error:
        raise DataError(f"a recorded flavour is incomplete ({error})", "take the run from a copy") from None


def header_of(path: Path, what: str, needed: set[str], example: str) -> tuple[str, dict[str, str]]:
    """Return the text of a ``.cuh`` of the user's own and the words of its header line ``// xstage-WHAT: key=value ...``.

    Raises
    ------
    UsageError
        No such file, no header, a word that is missing, or a name that is none.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({type(error).__name__})", f"--{what}-path names a .cuh file") from None
    found = re.search(rf"^//\s*xstage-{what}:\s*(.*)$", text, re.MULTILINE)
    if found is None:
        raise UsageError(f"{path}: no header line 'xstage-{what}:'", f"for example {example}")
    words = dict(word.partition("=")[::2] for word in found.group(1).split())
    if missing := needed - set(words):
        raise UsageError(f"{path}: the header lacks {', '.join(sorted(missing))}", f"for example {example}")
    if re.fullmatch(r"[A-Za-z_]\w*", words["function"]) is None or re.fullmatch(r"[\w.]+", words["name"]) is None:
        raise UsageError(f"{path}: name or function has characters that it may not have", f"for example {example}")
    return text, words


def load_flavour(path: Path) -> Flavour:
    """Read a flavour of the user's own: a ``.cuh`` file with one inline function and one header line (results/h200-x2/flavours).

    ::

        // xstage-flavour: name=st.mine function=st_mine bytes=16 kind=store

    Raises
    ------
    UsageError
        No such file, no header, or a header that says nothing usable.
    """
    example = "// xstage-flavour: name=st.mine function=st_mine bytes=16 kind=store"
    text, words = header_of(path, "flavour", {"name", "function", "bytes", "kind"}, example)
    kind, size = words["kind"], words["bytes"]
    if kind not in ("store", "reduce"):
        raise UsageError(f"{path}: kind is '{kind}', must be store or reduce", "bulk copies are built in")
    if size not in ("4", "8", "16", "32"):
        raise UsageError(f"{path}: bytes is '{size}', must be 4, 8, 16 or 32 per lane", f"for example {example}")
    arch = tuple(words.get("architectures", ",".join(_PLAIN)).split(","))
    if not all(re.fullmatch(r"sm_\d+", a) for a in arch):
        raise UsageError(f"{path}: architectures must be sm_NN, separated by commas", "for example architectures=sm_90,sm_100")
    element = words.get("element", "f32" if kind == "reduce" else "")
    if kind == "reduce" and element not in ("f32", "bf16x2"):
        raise UsageError(f"{path}: element is '{element}', must be f32 or bf16x2", "what the reduction adds")
    found: Kind = "store" if kind == "store" else "reduce"
    return Flavour(words["name"], words["function"], int(size), found, arch, words.get("sass", ""), element=element, source=text)
