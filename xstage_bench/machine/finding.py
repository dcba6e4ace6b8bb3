"""One finding about a machine or a run: what was looked at, how it stands, what was seen, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail", "waived"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, how it stands, what was seen, and what to do about it."""

    check: str
    status: Status
    detail: str
    hint: str | None = None
