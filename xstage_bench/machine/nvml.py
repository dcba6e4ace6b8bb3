"""NVML with every question guarded: what a driver cannot answer is null with its reason, never an exception or a made-up value.

NVML creates no CUDA context, so it may be asked before, during and after a measurement. It is passed around as a parameter
(`nvml`, a module-like object) so that tests can put a recorded node in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What NVML raises besides its own class: a function that the installed nvidia-ml-py or driver does not know, or a malformed answer.
_ANSWERS_LACKING = (AttributeError, UnicodeDecodeError, ValueError, TypeError, LookupError, OverflowError, OSError)
_MOST_GPUS = 1024


class NvmlUnavailable(Exception):  # noqa: N818 - a state of the machine, which callers turn into a reason
    """NVML cannot be used here; the text says why."""


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """One GPU in NVML's own order. `handle` is null, with the `reason`, when the GPU does not answer.

    `unanswered` has the reason of each of ``uuid``, ``pci_address`` and ``name`` that is null.
    """

    nvml_index: int
    handle: Any
    uuid: str | None
    pci_address: str | None
    name: str | None
    reason: str | None = None
    unanswered: dict[str, str] = field(default_factory=dict)


@contextmanager
def open_nvml(nvml: Any | None = None) -> Iterator[Any]:
    """Initialise NVML for the length of a block.

    Parameters
    ----------
    nvml : module-like, optional
        Default: ``pynvml``.

    Yields
    ------
    module-like
        The initialised NVML.

    Raises
    ------
    NvmlUnavailable
        There is no NVML library or no loaded driver here.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            raise NvmlUnavailable("the package nvidia-ml-py is not installed") from None
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlUnavailable(f"NVML does not start: {error}") from None
    try:
        yield nvml
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def ask(nvml: Any, function: str, *arguments: Any, convert: Callable[[Any], Any] | None = None) -> tuple[Any, str | None]:
    """Call one NVML function by name.

    Parameters
    ----------
    nvml : module-like
    function : str
    *arguments
    convert : callable, optional
        Applied to the answer; what it cannot take is no answer.

    Returns
    -------
    value, reason
        The answer and None, or None and why there is no answer.
    """
    try:
        value = getattr(nvml, function)(*arguments)
        value = value.decode(errors="replace") if isinstance(value, bytes) else value
        return (value if convert is None else convert(value)), None
    except nvml.NVMLError as error:
        return None, str(error)
    except _ANSWERS_LACKING as error:
        return None, f"{function}: {type(error).__name__}"


def whole(value: Any) -> int:
    """Return a count or number of NVML's as it is; TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def text(value: Any) -> str:
    """Return a name of NVML's as it is; TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def put(into: dict[str, Any], key: str, answer: tuple[Any, str | None], convert: Callable[[Any], Any] | None = None) -> None:
    """Store an answer of `ask` under `key`; a missing one as null, with its reason under ``unavailable``."""
    value, reason = answer
    if reason is None and convert is not None:
        try:
            value = convert(value)
        except _ANSWERS_LACKING as error:
            value, reason = None, f"unexpected answer: {type(error).__name__}"
    into[key] = value
    if reason is not None:
        into.setdefault("unavailable", {})[key] = reason


def ask_field(nvml: Any, handle: Any, field: int, scope: int = 0) -> tuple[int | float | None, str | None]:
    """Ask for one field value (NVML's numbered counters); `scope` is the link number for the NVLink fields."""

    def number(values: Any) -> int | float:
        answer = values[0]
        if answer.nvmlReturn != 0:
            raise nvml.NVMLError(answer.nvmlReturn)
        member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}[answer.valueType]
        value = getattr(answer.value, member)
        return float(value) if member == "dVal" else whole(value)

    return ask(nvml, "nvmlDeviceGetFieldValues", handle, [(field, scope)], convert=number)


def list_gpus(nvml: Any) -> list[NvmlGpu]:
    """All GPUs that NVML knows, in NVML's order (by PCI address), lost ones included."""
    count, reason = ask(nvml, "nvmlDeviceGetCount", convert=whole)
    if reason is None and not 0 <= count <= _MOST_GPUS:
        reason = f"{count} is no number of GPUs"
    if reason is not None:
        raise NvmlUnavailable(f"NVML does not count the GPUs: {reason}")
    gpus = []
    for index in range(count):
        handle, reason = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        if reason is not None:
            gpus.append(NvmlGpu(index, None, None, None, None, reason))
            continue
        facts: dict[str, Any] = {}
        put(facts, "uuid", ask(nvml, "nvmlDeviceGetUUID", handle, convert=text))
        put(facts, "pci_address", ask(nvml, "nvmlDeviceGetPciInfo", handle, convert=lambda info: pci_address(info.busId)))
        put(facts, "name", ask(nvml, "nvmlDeviceGetName", handle, convert=text))
        unanswered = facts.pop("unavailable", {})
        gpus.append(NvmlGpu(index, handle, **facts, unanswered=unanswered))
    return gpus


def pci_address(bus_id: str | bytes) -> str:
    """Return a PCI address as ``dddd:bb:dd.f`` in lower case: NVML pads the domain to 8 digits, CUDA to 4."""
    text = (bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else bus_id).strip().lower()
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def pci_bus_gpus(sysfs: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """PCI addresses of NVIDIA display or 3D controllers, whether or not a driver answers for them.

    A GPU whose driver is not loaded must not look like a machine without GPUs.
    """
    found = []
    with suppress(OSError):
        for device in sorted(sysfs.iterdir()):
            with suppress(OSError):
                vendor, kind = ((device / part).read_text().strip() for part in ("vendor", "class"))
                if vendor == "0x10de" and kind.startswith("0x03"):
                    found.append(device.name)
    return found
