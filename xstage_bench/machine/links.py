"""The NVLinks of one GPU as NVML reports them: state, speed, version, what is at the other end, error counters."""

from __future__ import annotations

from typing import Any

from xstage_bench.machine.nvml import ask, ask_field, pci_address, put, whole

#: NVML's constants, by the names and numbers of nvml.h; the fake node of the tests is asked with the same numbers.
MAX_LINKS = 18
FIELD_SPEED_MB_PER_S = 164
FIELD_ERRORS = {"replay": 161, "recovery": 162, "crc": 163}
FIELD_TRAFFIC_BYTES = {"sent": 202, "received": 204}
ERROR_COUNTERS = {"replay": 0, "recovery": 1, "crc": 2}
#: NVML's number of an NVLink generation, by nvml.h; 2 x H200 answer 6.
GENERATIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0"}
REMOTE_TYPES = {0: "gpu", 1: "ibm_npu", 2: "switch"}


def read_links(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Describe the NVLinks that a GPU has.

    Returns
    -------
    list of dict
        One per link that NVML knows the state of, whether up or down; empty for a card without NVLink. ``link``, ``active``,
        ``version``, ``remote_type`` (``gpu``, ``switch``), ``remote_pci_address``, ``gb_per_s`` (10^9 bytes per second and direction),
        ``errors`` (replay, recovery, crc). Missing values are null with their reason under ``unavailable``.
    """
    links = []
    for link in range(MAX_LINKS):
        state, reason = ask(nvml, "nvmlDeviceGetNvLinkState", handle, link, convert=whole)
        if reason is not None:
            continue  # NVML answers "not supported" for the links that a card does not have
        facts: dict[str, Any] = {"link": link, "active": bool(state)}
        if state:
            put(facts, "version", ask(nvml, "nvmlDeviceGetNvLinkVersion", handle, link, convert=whole))
            put(facts, "remote_type", ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link), _remote_type)
            put(facts, "remote_pci_address", ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link), _remote_address)
            put(facts, "gb_per_s", ask_field(nvml, handle, FIELD_SPEED_MB_PER_S, link), _gb_per_s)
        facts["errors"] = _errors(nvml, handle, link)
        links.append(facts)
    return links


def _remote_type(number: int) -> str:
    return REMOTE_TYPES.get(number, f"unknown ({number})")


def _remote_address(pci: Any) -> str:
    return pci_address(pci.busId)


def _gb_per_s(mb_per_s: float) -> float:
    return mb_per_s / 1000.0


def _errors(nvml: Any, handle: Any, link: int) -> dict[str, Any]:
    """Error counts of one link: the numbered fields, and where a driver lacks them the older counters."""
    errors: dict[str, Any] = {}
    for name, field in FIELD_ERRORS.items():
        answer = ask_field(nvml, handle, field, link)
        if answer[1] is not None:
            answer = ask(nvml, "nvmlDeviceGetNvLinkErrorCounter", handle, link, ERROR_COUNTERS[name], convert=whole)
        put(errors, name, answer)
    return errors


def active_links(links: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the links that are up."""
    return [link for link in links if link["active"]]


def line_rate_gb_per_s(links: list[dict[str, Any]]) -> float | None:
    """Sum of the speeds of the active links, in one direction; null when one of the speeds is unknown or none is active."""
    speeds = [link.get("gb_per_s") for link in active_links(links)]
    if not speeds or any(s is None for s in speeds):
        return None
    return round(float(sum(s for s in speeds if s is not None)), 3)
