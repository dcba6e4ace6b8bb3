"""Many kernels compiled and disassembled at once: nvdisasm takes half a second to start and a twentieth for a kernel. Workers share it.

`prepare` puts the machine code of a list of kernels into the folder that tests compile to, and `sass.disassemble` looks there first.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sharing import share

HEADER, SECTION, SYMBOL = 64, "<IIQQQQIIQQ", "<IBBHQQ"
#: Compiled and disassembled by one worker in one go, some seconds; small enough that the others find something left to do.
TOGETHER = 12


def folder() -> Path | None:
    """Where tests keep machine code; none outside of pytest."""
    root = os.environ.get("XSTAGE_CACHE_DIR")
    return Path(root) / "sass" if root and "PYTEST_CURRENT_TEST" in os.environ else None


def kept(cubin: bytes, options: Sequence[str]) -> Path | None:
    """The file of one kernel's machine code."""
    root = folder()
    return None if root is None else root / f"{hashlib.blake2b(cubin + repr(tuple(options)).encode(), digest_size=16).hexdigest()}.sass"


def prepare(name: str, makers: Sequence[Callable[[], bytes]], disassemble: Callable[..., str], *options: str) -> None:
    """Compile and disassemble all of a list, part by part; parts that another worker has begun are waited for."""
    root = folder()
    assert root is not None

    def part(first: int) -> None:
        _disassemble_all([make() for make in makers[first : first + TOGETHER]], disassemble, options)

    share(root, {f"{name}-{first}": partial(part, first) for first in range(0, len(makers), TOGETHER)})


def _disassemble_all(cubins: Sequence[bytes], disassemble: Callable[..., str], options: Sequence[str]) -> None:
    alike: dict[bytes, list[bytes]] = {}
    for cubin in dict.fromkeys(cubins):
        path = kept(cubin, options)
        if path is not None and not path.exists() and not any(name.startswith(".rela.text") and head[5] for name, head in _sections(cubin)):
            alike.setdefault(cubin[0x30:0x34], []).append(cubin)  # the ELF flags name the architecture
    for same in alike.values():
        text = disassemble(merged(same), *options)
        parts = re.split(r"(?=^//-+ \.text\.)", text, flags=re.MULTILINE)
        for i, cubin in enumerate(same):
            mine = (part for part in parts if re.match(rf"//-+ \.text\.v{i}_", part))
            path = kept(cubin, options)
            assert path is not None
            path.write_text(parts[0] + re.sub(rf"\bv{i}_(?=\w)", "", "".join(mine)))


def _sections(cubin: bytes) -> list[tuple[str, tuple[int, ...]]]:
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from(SECTION, cubin, table + i * size) for i in range(count)]
    text = cubin[heads[names][4] :]
    return [(text[h[0] : text.index(b"\0", h[0])].decode(), h) for h in heads]


def merged(cubins: Sequence[bytes]) -> bytes:
    """One ELF file with the code of all of them, the kernels of the i-th named ``v{i}_...``: no more than a disassembler needs."""
    codes = [
        (f"v{i}_{name.removeprefix('.text.')}", cubin[h[4] : h[4] + h[5]], h[7])
        for i, cubin in enumerate(cubins)
        for name, h in _sections(cubin)
        if name.startswith(".text.") and h[5]
    ]
    body, names, strings = bytearray(), bytearray(b"\0"), bytearray(b"\0")

    def put(data: bytes, align: int) -> int:
        body.extend(b"\0" * (-(HEADER + len(body)) % align))
        body.extend(data)
        return HEADER + len(body) - len(data)

    def named(table: bytearray, name: str) -> int:
        table.extend(name.encode() + b"\0")
        return len(table) - len(name) - 1

    first = 4  # sections before the code
    symbols = [struct.pack(SYMBOL, 0, 0, 0, 0, 0, 0)]
    symbols += [struct.pack(SYMBOL, named(strings, f".text.{n}"), 3, 0, first + i, 0, 0) for i, (n, *_) in enumerate(codes)]
    symbols += [struct.pack(SYMBOL, named(strings, n), 0x12, 0x10, first + i, 0, len(c)) for i, (n, c, _) in enumerate(codes)]
    name_at = [named(names, name) for name in (".shstrtab", ".strtab", ".symtab", *(f".text.{n}" for n, *_ in codes))]
    heads = [(0,) * 10]
    for at, kind, data, link, info, align, size in (
        (name_at[0], 3, bytes(names), 0, 0, 1, 0),
        (name_at[1], 3, bytes(strings), 0, 0, 1, 0),
        (name_at[2], 2, b"".join(symbols), 2, 1 + len(codes), 8, 24),
    ):
        heads.append((at, kind, 0, 0, put(data, align), len(data), link, info, align, size))
    for i, (_, code, info) in enumerate(codes):
        registers_and_symbol = (info & ~0xFFFFFF) | (1 + len(codes) + i)
        heads.append((name_at[3 + i], 1, 6, 0, put(code, 128), len(code), 3, registers_and_symbol, 128, 0))
    table = put(b"".join(struct.pack(SECTION, *h) for h in heads), 8)
    head = bytearray(cubins[0][:HEADER])
    struct.pack_into("<QQ", head, 0x20, 0, table)  # no program headers
    struct.pack_into("<HHHHH", head, 0x36, 0, 0, 64, len(heads), 1)
    return bytes(head + body)
