"""The NVLinks of one GPU as NVML reports them: state, speed, version, what is at the other end, error counters; and what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from xstage_bench.machine.nvml import ask, ask_field, pci_address, put, whole

#: NVML's constants, by the names and numbers of nvml.h; the fake node of the tests is asked with the same numbers.
MAX_LINKS = 36
FIELD_SPEED_MB_PER_S = 164
FIELD_ERRORS = {"replay": 161, "recovery": 162, "crc": 163}
#: What NVLink 5 counts in place of those; the last two are rates.
FIELD_ERRORS_NVLINK5 = {
    "recovery_events": 215, "recovery_failed": 214, "effective_errors": 219, "symbol_errors": 221, "effective_ber": 220, "symbol_ber": 222,
}  # fmt: skip
FIELD_TRAFFIC_BYTES = {"sent": 202, "received": 204}
ERROR_COUNTERS = {"replay": 0, "recovery": 1, "crc": 2}
#: NVML's number of an NVLink generation, by nvml.h; 2 x H200 answer 6.
GENERATIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0"}
REMOTE_TYPES = {0: "gpu", 1: "ibm_npu", 2: "switch"}
#: Names of cards whose links end in a connector that may be empty; those of other GPUs are on their board.
_CONNECTOR = re.compile(r"PCIe|\bNVL\b|RTX|Quadro|TITAN|GeForce|\bA[3-6]0\b|\bA[2-6]\d00\b|GH200", re.IGNORECASE)
#: How the links stand: none on this card, all up, fewer by how it is fitted or set, fewer for no known reason, not known.
LinkState = Literal["by_design", "complete", "by_configuration", "broken", "unknown"]


@dataclass(frozen=True, slots=True)
class LinkCount:
    """How many NVLinks a GPU has, how many are up, how many should be, and how that stands; null where the driver does not say."""

    present: int
    active: int | None
    expected: int | None
    state: LinkState


def read_links(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Describe the NVLinks that a GPU has.

    Returns
    -------
    list of dict
        One per link that the card has, whether up or down; empty for a card without NVLink. ``link``, ``active`` (null where only
        the state is not known), ``version``, ``remote_type`` (``gpu``, ``switch``), ``remote_pci_address``, ``gb_per_s`` (10^9 bytes per
        second and direction), ``errors`` (replay, recovery, crc; where these are gone also those of `FIELD_ERRORS_NVLINK5`). Missing
        values are null with their reason under ``unavailable``.
    """
    links = []
    for link in range(MAX_LINKS):
        state, reason = ask(nvml, "nvmlDeviceGetNvLinkState", handle, link, convert=whole)
        version = ask(nvml, "nvmlDeviceGetNvLinkVersion", handle, link, convert=whole) if state or reason is not None else (None, None)
        if reason is not None and not version[0]:
            continue  # NVML answers "not supported" for the links that a card does not have
        facts: dict[str, Any] = {"link": link}
        put(facts, "active", (state, reason), bool)
        if facts["active"] is not False:
            put(facts, "version", version)
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
    """Error counts of one link: the numbered fields, where a driver lacks them the older counters, and those that NVLink 5 has instead."""
    errors: dict[str, Any] = {}
    for name, field in FIELD_ERRORS.items():
        answer = ask_field(nvml, handle, field, link)
        if answer[1] is not None:
            answer = ask(nvml, "nvmlDeviceGetNvLinkErrorCounter", handle, link, ERROR_COUNTERS[name], convert=whole)
        put(errors, name, answer)
    newer = {n: ask_field(nvml, handle, f, link) for n, f in FIELD_ERRORS_NVLINK5.items()} if "unavailable" in errors else {}
    if any(reason is None for _, reason in newer.values()):
        for name, answer in newer.items():
            put(errors, name, answer, bit_error_rate if name.endswith("_ber") else None)
    return errors


def bit_error_rate(code: int) -> float:
    """Return the rate that NVML packs into a number: four bits of mantissa above eight of a negative power of ten."""
    return (code >> 8 & 0xF) * 10.0 ** -(code & 0xFF)


def counted(errors: Mapping[str, Any]) -> dict[str, int]:
    """Return the counters of a link that were read, rates left out."""
    return {name: n for name, n in errors.items() if isinstance(n, int)}


def active_links(links: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the links that are up."""
    return [link for link in links if link["active"]]


def count_links(name: str | None, links: Sequence[Mapping[str, Any]], alike: int = 0, expect: int | None = None) -> LinkCount:
    """Hold the links of a GPU against what was expected.

    Parameters
    ----------
    name : str or None
        Of the GPU: says whether its links end in a connector, which may be empty by configuration.
    links : sequence
        Of `read_links`.
    alike : int
        Most links that are up on any GPU of this name here.
    expect : int, optional
        What the user says; else all, or on a card with a connector as many as on the GPUs like it.
    """
    present = len(links)
    optional = name is not None and _CONNECTOR.search(name) is not None
    expected = expect if expect is not None else alike if optional else present
    if any(link["active"] is None for link in links):
        return LinkCount(present, None, expect, "unknown")
    active = sum(bool(link["active"]) for link in links)
    if not present and not expected:
        return LinkCount(0, 0, 0, "by_design")
    if active >= expected:
        return LinkCount(present, active, expected, "complete" if active == present else "by_configuration")
    empty = expect is None and optional and not active
    return LinkCount(present, active, expected, "by_configuration" if empty else "broken")


def most_active(named: Sequence[tuple[str | None, Sequence[Mapping[str, Any]]]]) -> dict[str | None, int]:
    """Return the most links that are up on any GPU of each name."""
    most: dict[str | None, int] = {}
    for name, links in named:
        most[name] = max(most.get(name, 0), sum(bool(link["active"]) for link in links))
    return most


def line_rate_gb_per_s(links: list[dict[str, Any]]) -> float | None:
    """Sum of the speeds of the active links, in one direction; null when one of the speeds is unknown or none is active."""
    speeds = [link.get("gb_per_s") for link in active_links(links)]
    if not speeds or any(s is None for s in speeds):
        return None
    return round(float(sum(s for s in speeds if s is not None)), 3)


@dataclass(frozen=True, slots=True)
class Shared:
    """The NVLinks that two GPUs share and what those carry in one direction; null where the driver does not say."""

    links: int | None
    line_rate_gb_per_s: float | None


def shared_links(a: list[dict[str, Any]], b: list[dict[str, Any]], address_b: str | None, *, one_fabric: bool = True) -> Shared:
    """Links between two GPUs: the direct ones, else through a switch of one fabric as many as both have."""
    up_a, up_b = active_links(a), active_links(b)
    direct = [link for link in up_a if link["remote_type"] == "gpu" and link["remote_pci_address"] in (address_b, None)]
    unknown = [link for link in (*a, *b) if link["active"] is None or (link["active"] and link["remote_type"] is None)]
    if unknown or (direct and (address_b is None or any(link["remote_pci_address"] is None for link in direct))):
        return Shared(None, None)
    switched = [[link for link in up if link["remote_type"] == "switch"] for up in (up_a, up_b)] if one_fabric else [[]]
    chosen = direct or min(switched, key=lambda up: (len(up), line_rate_gb_per_s(up) or 0.0))
    return Shared(len(chosen), line_rate_gb_per_s(chosen))
