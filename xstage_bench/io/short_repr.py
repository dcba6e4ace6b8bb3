"""How a public value shows itself: its fields on one line, of long ones only what and how much; a notebook is not flooded."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

_SHOWN, _LONGEST = 4, 80


def short_repr(value: Any) -> str:
    """Return the `repr` of a dataclass; arrays and long lists as their type and size."""
    return f"{type(value).__name__}({', '.join(f'{f.name}={_short(getattr(value, f.name))}' for f in fields(value) if f.repr)})"


def _short(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"<{value.dtype} {'x'.join(map(str, value.shape))}>"
    if isinstance(value, list | tuple | dict) and len(value) > _SHOWN:
        return f"<{type(value).__name__} of {len(value)}>"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"<{type(value).__name__}{f' of {len(value)}' if hasattr(value, '__len__') else ''}>"
