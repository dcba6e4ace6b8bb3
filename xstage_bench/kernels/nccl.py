"""The All-to-All of NCCL for the GPUs of one process: grouped sends and receives, which is what framework calls of that name do.

Bound by ctypes, so that neither CuPy's optional module nor a framework has to be there.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from xstage_bench.errors import WaivedError

_BYTES = 0  # ncclInt8


class Nccl:
    """One communicator for each GPU, all in this process; `WaivedError`: the library is not installed, or refuses the GPUs."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._library = _load()
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        version = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(version))
        self.version = f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}"
        self._communicators = (ctypes.c_void_p * len(devices))()
        self._call("ncclCommInitAll", self._communicators, len(devices), (ctypes.c_int * len(devices))(*devices))

    def exchange(self, messages: Iterable[tuple[int, int, int, int, int]], streams: Sequence[int]) -> None:
        """Queue messages ``(sender, receiver, from, to, bytes)``, addresses on their GPUs, as one group on the ranks' streams."""
        self._call("ncclGroupStart")
        for sender, receiver, source, destination, size in messages:
            self._call("ncclSend", *self._message(source, size, receiver, sender, streams))
            self._call("ncclRecv", *self._message(destination, size, sender, receiver, streams))
        self._call("ncclGroupEnd")

    def close(self) -> None:
        """Destroy the communicators."""
        for communicator in self._communicators:
            self._library.ncclCommDestroy(ctypes.c_void_p(communicator))

    def _message(self, address: int, size: int, peer: int, mine: int, streams: Sequence[int]) -> tuple[Any, ...]:
        pointer = ctypes.c_void_p
        return pointer(address), ctypes.c_size_t(size), _BYTES, peer, pointer(self._communicators[mine]), pointer(streams[mine])

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise WaivedError(f"{name}: {self._library.ncclGetErrorString(status).decode()}", "NCCL_DEBUG=INFO shows more")


def _load() -> Any:
    """Load the library by name, else from the wheel that frameworks bring."""
    wheels = [Path(folder) / "nvidia" / "nccl" / "lib" / "libnccl.so.2" for folder in sys.path]
    for name in ("libnccl.so.2", *(str(path) for path in wheels if path.is_file())):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise WaivedError("NCCL is not installed", "pip install nvidia-nccl-cu13 (or cu12)")
