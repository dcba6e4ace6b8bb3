"""Destination memory that another process owns: by CUDA IPC handles, or as NVSHMEM symmetric memory.

Either way a rank ends up with an address of its own memory and one for each other rank's, which the kernels store through as through any
pointer.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Protocol

from xstage_bench.device.cuda.rendezvous import Channel
from xstage_bench.errors import WaivedError, XStageError

_COLLECTIVE_S = 90.0


class Windows(Protocol):
    """One window of memory per rank, as this rank addresses them."""

    own: int
    peers: dict[int, int]

    def close(self) -> None:
        """Unmap, in step with the other ranks."""
        ...


class IpcWindows:
    """Each rank exports its plain cudaMalloc window by an IPC handle. One node only."""

    def __init__(self, device: int, own: int, channel: Channel) -> None:
        from cupy.cuda import runtime

        self._runtime, self._channel = runtime, channel
        runtime.setDevice(device)
        self.own = own
        handle = bytes(runtime.ipcGetMemHandle(own)).hex()
        said = channel.exchange("IPC handles", {"host": _machine(), "handle": handle}, _COLLECTIVE_S)
        hosts = sorted({s["host"] for s in said})
        if len(hosts) > 1:
            raise WaivedError(f"CUDA IPC works within one node, and the ranks are on {', '.join(hosts)}", "--memory nvshmem")
        self.peers: dict[int, int] = {}
        for rank, one in enumerate(said):
            if rank != channel.place.rank:
                try:
                    self.peers[rank] = runtime.ipcOpenMemHandle(bytes.fromhex(one["handle"]), runtime.cudaIpcMemLazyEnablePeerAccess)
                except runtime.CUDARuntimeError as error:
                    raise WaivedError(
                        f"rank {channel.place.rank} cannot open the memory of rank {rank}: {error}",
                        "CUDA IPC needs common PID and IPC namespaces (containers: --ipc=host --pid=host); see also 'xstage topo'",
                    ) from None
        channel.exchange("IPC memory open", timeout_s=_COLLECTIVE_S)

    def close(self) -> None:
        """Unmap; no rank may free its memory before all have."""
        for address in self.peers.values():
            self._runtime.ipcCloseMemHandle(address)
        self._channel.exchange("IPC memory closed", timeout_s=_COLLECTIVE_S)


class NvshmemWindows:
    """A symmetric array. Ranks whose memory cannot be addressed directly (another NVLink domain) are refused."""

    def __init__(self, device: int, size: int, channel: Channel) -> None:
        # Multicast can put the GPUs of a host out of service, and nothing here uses it.
        os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")
        os.environ.setdefault("NVSHMEM_SYMMETRIC_SIZE", str(max(256 << 20, 2 * size)))
        try:
            import nvshmem.core as nvshmem
            from cuda.core import Device
        except ImportError as error:
            raise XStageError(f"NVSHMEM is not installed: {error}", "pip install 'xstage-bench[nvshmem]'") from None
        self._nvshmem: Any = nvshmem
        place = channel.place
        gpu = Device(device)
        gpu.set_current()
        uid = nvshmem.get_unique_id(empty=place.rank != 0)
        # All ranks see the identifier that rank 0 made; NVSHMEM then connects them by itself.
        first = channel.exchange("NVSHMEM identifier", uid._data.tobytes().hex() if place.rank == 0 else None, _COLLECTIVE_S)[0]
        uid._data.view("u1")[...] = list(bytes.fromhex(first))
        nvshmem.init(device=gpu, uid=uid, rank=place.rank, nranks=place.size, initializer_method="uid")
        self._array = nvshmem.array((size,), dtype="uint8")
        self.own = int(self._array.data.ptr)
        self.peers: dict[int, int] = {}
        for rank in range(place.size):
            if rank != place.rank:
                self.peers[rank] = self._address(rank)
        channel.exchange("NVSHMEM memory open", timeout_s=_COLLECTIVE_S)

    def _address(self, rank: int) -> int:
        try:
            return int(self._nvshmem.get_peer_array(self._array, rank).data.ptr)
        except Exception as error:
            raise WaivedError(
                f"the memory of rank {rank} cannot be addressed from here (nvshmem_ptr): {error}", "measure ranks of one NVLink domain"
            ) from None

    def close(self) -> None:
        """Free the array, a collective, and end NVSHMEM."""
        self._nvshmem.free_array(self._array)
        self._nvshmem.finalize()


def _machine() -> str:
    """Name this machine; ranks in containers may share a host name, so the boot's identifier goes with it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{socket.gethostname()}/{file.read().strip()[:8]}"
    except OSError:
        return socket.gethostname()
