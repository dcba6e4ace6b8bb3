"""Tests that need two GPUs with a usable peer path; elsewhere they are skipped and say why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from xstage_bench.device.backend import resolve_backend
from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.errors import XStageError


@pytest.fixture(scope="session")
def device() -> Iterator[CudaDevice]:
    try:
        resolve_backend("cuda", "gpu")
    except XStageError as error:
        pytest.skip(f"no GPUs to measure: {error.message}")
    opened = CudaDevice()
    yield opened
    opened.close()
