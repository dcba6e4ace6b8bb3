"""Facts about the structs and constants of ``cuda/`` that the compiler itself is asked about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from xstage_bench.device.cuda.compile import compile_source


def holds(header: str, facts: Mapping[str, int]) -> None:
    """Compile a static assertion of each C++ expression of `header` and its value."""
    pytest.importorskip("cuda.bindings.nvrtc")
    asserts = [f'static_assert({expression} == {value}, "{expression} is not {value}");' for expression, value in facts.items()]
    compile_source("\n".join([f'#include "{header}"', *asserts]), "facts.cu", "sm_90")


def mirrored(struct: str, dtype: np.dtype[Any]) -> dict[str, int]:
    """What holds of a struct that is laid out as `dtype`: its size, and offset and size of every field."""
    facts = {f"sizeof({struct})": dtype.itemsize}
    for name in dtype.names or ():
        field, offset = dtype.fields[name][:2]  # type: ignore[index]
        facts |= {f"__builtin_offsetof({struct}, {name})": offset, f"sizeof({struct}::{name})": field.itemsize}
    return facts
