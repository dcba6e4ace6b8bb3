"""What all HTML pages share: one file that holds everything, loads nothing and runs nothing, for light and dark, screen and print."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True, slots=True)
class Table:
    """A table as text; `note` stands below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def render(template: str, **values: Any) -> str:
    """Fill a template of this package; every text is escaped, and a name that is not given is an error, not an empty string."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FileSystemLoader(TEMPLATES)
    )
    return environment.get_template(template).render(**values)


def data_url(image: bytes, kind: str) -> str:
    """Return an image as a data URL: not inline SVG, so that ids of two figures cannot collide. `kind` is ``png`` or ``svg+xml``."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode('ascii')}"
