"""Which device a ``--backend`` means on this machine, and how to open it.

The rule of `auto`: a usable pair of GPUs is measured; GPUs without a usable pair store to pinned host memory, and that and the reason are
said; if that cannot be had either they are refused with the reason, because dead links must not pass as a simulation. Only a machine
without any GPU is simulated, and that is said too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal, TypeVar

from xstage_bench.errors import UsageError, WaivedError
from xstage_bench.machine.topology import Topology, read_topology
from xstage_bench.schedule.device import Device

DEFAULT_PRESET = "h200-nv18-x2"
Peer = Literal["auto", "gpu", "host"]
D = TypeVar("D")
_FORMS = "auto, cuda, sim, sim:PRESET or replay:WHERE"


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend decided on: ``spec`` is ``cuda``, ``sim:PRESET`` or ``replay:WHERE``, never ``auto``; ``reason`` says why.

    `simulated` is true also for the replay of a simulated run. `peer` is what is stored to: other GPUs, or pinned host memory.
    `expect_links` is how many NVLinks of each GPU should be up, where the user says so.
    """

    spec: str
    reason: str
    simulated: bool
    peer: Literal["gpu", "host"] = "gpu"
    expect_links: int | None = None


def resolve_backend(
    spec: str,
    peer: Peer = "auto",
    *,
    topology: Callable[[], Topology] | None = None,
    has_cupy: Callable[[], bool] = lambda: find_spec("cupy") is not None,
    expect_links: int | None = None,
) -> BackendChoice:
    """Decide what a ``--backend`` means here.

    Parameters
    ----------
    spec : str
        ``auto``, ``cuda``, ``sim``, ``sim:PRESET``, ``replay:WHERE``.
    peer : {'auto', 'gpu', 'host'}
        ``auto``: other GPUs where a pair is usable, else host memory.
    topology : callable, optional
        Default `read_topology`; called only for ``auto`` and ``cuda``.
    has_cupy : callable
        Whether CuPy is installed; it is not imported.
    expect_links : int, optional
        NVLinks that should be up on each GPU, as in `read_topology`.

    Raises
    ------
    UsageError
        The spec has none of these forms, or names a run that does not exist.
    DataError
        What it names is no sound run folder.
    WaivedError
        GPUs are asked for, or present, and cannot be measured.
    """
    kind, colon, rest = spec.partition(":")
    if kind == "sim":
        if colon and not rest:
            raise UsageError("--backend sim: names no preset", f"--backend sim, or sim:{DEFAULT_PRESET}")
        return BackendChoice(f"sim:{rest or DEFAULT_PRESET}", "asked for", True, "host" if peer == "host" else "gpu")
    if kind == "replay":
        if not rest:
            raise UsageError("--backend replay needs a run folder", "--backend replay:FOLDER")
        if peer != "auto":
            raise UsageError("--peer and a replay: it has the destinations that were recorded", "leave out --peer")
        from xstage_bench.device.replay import find_run

        return BackendChoice(spec, "asked for", find_run(rest).manifest.simulated)
    if colon or kind not in ("auto", "cuda"):
        raise UsageError(f"unknown backend '{spec}'", f"use one of: {_FORMS}")
    node = read_topology(expect_links=expect_links) if topology is None else topology()
    found = _destination(node, kind, peer)
    if found is not None:
        if not has_cupy():
            why = f"{found.reason}, but" if found.peer == "host" else "GPUs are here but"
            raise WaivedError(f"{why} CuPy is not installed", "pip install 'xstage-bench[cuda13]' (drivers before 580: cuda12)")
        return replace(found, expect_links=expect_links)
    if kind == "auto" and not node.gpus and node.unseen is None:
        return BackendChoice(f"sim:{DEFAULT_PRESET}", f"no GPU here: {'; '.join(node.notes) or 'NVML finds none'}", True)
    hint = "xstage topo shows the links; --backend sim runs a simulated node"
    what = "no GPU here can store to host memory" if peer == "host" else "no pair of GPUs can be measured here"
    raise WaivedError(f"{what}: {node.why_not_host() if peer == 'host' else node.why_not()}", hint)


def resolve_gpus(spec: str, expect_links: int | None = None) -> BackendChoice:
    """Decide as `resolve_backend` for what only pairs of GPUs can do: ``auto`` is never the simulator."""
    peer: Peer = "gpu" if spec in ("auto", "cuda") else "auto"
    try:
        return resolve_backend("cuda" if spec == "auto" else spec, peer, expect_links=expect_links)
    except WaivedError as error:
        hint = error.hint if "CuPy" in error.message else "xstage topo shows the links; no simulator answers here"
        raise WaivedError(error.message, hint) from None


def _destination(node: Topology, kind: str, peer: Peer) -> BackendChoice | None:
    """What the GPUs of this node store to; None when there is nothing."""
    pairs = node.usable_pairs()
    if peer != "host" and pairs:
        return BackendChoice("cuda", "asked for" if kind == "cuda" else f"{len(pairs)} usable pairs of GPUs", False)
    if peer == "gpu" or not node.host_gpus():
        return None
    why = "asked for" if peer == "host" else f"no pair of GPUs can be measured here: {node.why_not()}; host memory is the destination"
    return BackendChoice("cuda", why, False, "host")


def open_device(choice: BackendChoice, *, seed: int = 0, process: int = 0) -> Device:
    """Open one device: one process with its own allocations.

    Parameters
    ----------
    choice : BackendChoice
    seed : int
        For the simulator's noise.
    process : int
        Which fresh process this is.

    Raises
    ------
    UsageError
        An unknown preset, or a run to replay that does not exist.
    """
    kind, _, rest = choice.spec.partition(":")
    if kind == "sim":
        from xstage_bench.device.sim import SimDevice

        return SimDevice(rest, seed=seed, process=process, peer=choice.peer)
    if kind == "replay":
        from xstage_bench.device.replay import ReplayDevice

        return ReplayDevice(rest, process=process)
    from xstage_bench.device.cuda.device import CudaDevice

    return CudaDevice(process=process, peer=choice.peer, expect_links=choice.expect_links)


def opener(choice: BackendChoice, protocol: type[D], does: str, *, seed: int = 0) -> Callable[[int], D]:
    """Return what opens the devices of a measurement that not every backend can do.

    Parameters
    ----------
    choice : BackendChoice
    protocol : type
        What the device must implement.
    does : str
        What that is, for the message.
    seed : int

    Raises
    ------
    UsageError
        When it is called: the backend cannot do it.
    """

    def opened(process: int) -> D:
        device = open_device(choice, seed=seed, process=process)
        if not isinstance(device, protocol):
            device.close()
            raise UsageError(f"backend {choice.spec} cannot {does}", "use --backend cuda, or sim where the simulator can")
        return device

    return opened
