"""Which device a ``--backend`` means on this machine, and how to open it.

The rule of `auto`: a usable pair of GPUs is measured; GPUs without a usable pair are refused with the reason, because dead links
must not pass as a simulation; only a machine without any GPU is simulated, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from xstage_bench.device import Device
from xstage_bench.errors import UsageError, WaivedError
from xstage_bench.topology import Topology, read_topology

DEFAULT_PRESET = "h200-nv18-x2"
_FORMS = "auto, cuda, sim, sim:PRESET or replay:WHERE"


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend decided on: ``spec`` is ``cuda``, ``sim:PRESET`` or ``replay:WHERE``, never ``auto``; ``reason`` says why.

    `simulated` is true also for the replay of a simulated run.
    """

    spec: str
    reason: str
    simulated: bool


def resolve_backend(
    spec: str,
    *,
    topology: Callable[[], Topology] = read_topology,
    has_cupy: Callable[[], bool] = lambda: find_spec("cupy") is not None,
) -> BackendChoice:
    """Decide what a ``--backend`` means here.

    Parameters
    ----------
    spec : str
        ``auto``, ``cuda``, ``sim``, ``sim:PRESET``, ``replay:WHERE``.
    topology : callable
        Read only for ``auto`` and ``cuda``.
    has_cupy : callable
        Whether CuPy is installed; it is not imported.

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
        return BackendChoice(f"sim:{rest or DEFAULT_PRESET}", "asked for", True)
    if kind == "replay":
        if not rest:
            raise UsageError("--backend replay needs a run folder", "--backend replay:FOLDER")
        from xstage_bench.device.replay import find_run

        return BackendChoice(spec, "asked for", find_run(rest).manifest.simulated)
    if colon or kind not in ("auto", "cuda"):
        raise UsageError(f"unknown backend '{spec}'", f"use one of: {_FORMS}")
    node = topology()
    pairs = node.usable_pairs()
    if pairs:
        if not has_cupy():
            raise WaivedError("GPUs are here but CuPy is not installed", "pip install 'xstage-bench[cuda13]' (drivers before 580: cuda12)")
        return BackendChoice("cuda", "asked for" if kind == "cuda" else f"{len(pairs)} usable pairs of GPUs", False)
    if kind == "auto" and not node.gpus and node.unseen is None:
        return BackendChoice(f"sim:{DEFAULT_PRESET}", f"no GPU here: {'; '.join(node.notes) or 'NVML finds none'}", True)
    hint = "xstage topo shows the links; --backend sim runs a simulated node"
    raise WaivedError(f"no pair of GPUs can be measured here: {node.why_not()}", hint)


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

        return SimDevice(rest, seed=seed, process=process)
    if kind == "replay":
        from xstage_bench.device.replay import ReplayDevice

        return ReplayDevice(rest, process=process)
    from xstage_bench.device.cuda.device import CudaDevice

    return CudaDevice(process=process)
