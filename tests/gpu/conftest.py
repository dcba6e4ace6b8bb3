"""Tests that need two GPUs with a usable peer path; elsewhere they are skipped and say why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from xstage_bench.device.backend import BackendChoice, resolve_backend
from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.errors import XStageError


def resolved(*peer: str) -> BackendChoice:
    """The CUDA backend, to a peer of this kind where one is named, or a skip that says why there is none."""
    try:
        return resolve_backend("cuda", *peer)  # type: ignore[arg-type]
    except XStageError as error:
        pytest.skip(f"no GPUs to measure: {error.message}")


@pytest.fixture(scope="session")
def two_gpus() -> BackendChoice:
    """What makes a test need two GPUs that reach each other."""
    return resolved("gpu")


@pytest.fixture(scope="session")
def device(two_gpus: BackendChoice) -> Iterator[CudaDevice]:
    opened = CudaDevice()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def node() -> Iterator[CudaDevice]:
    """A device of its own: GPU 0 takes part in everything, another one where it can be reached."""
    opened = CudaDevice(peer=resolved().peer)
    yield opened
    opened.close()
