"""Every flavour, layout and completion on real GPUs: verified on the destination, and a store that lies is caught."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.errors import PairError
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.completion import every_completion
from xstage_bench.schedule.device import Execution
from xstage_bench.schedule.flavour import FLAVOURS, load_flavour, register
from xstage_bench.schedule.layouts import LAYOUTS

pytestmark = pytest.mark.gpu


def unit(flavour: str, layout: str, warps: int) -> int:
    return Schedule((Burst(0),), 1, warps, flavour=flavour, layout=layout).warp_store_bytes * warps


@pytest.mark.parametrize("flavour", list(FLAVOURS))
def test_every_flavour_and_layout_stores_what_it_should(device: CudaDevice, flavour: str) -> None:
    if flavour not in device.node().flavours:
        pytest.skip(f"this GPU does not know {flavour}")
    for layout in LAYOUTS.values():
        if layout.takes(FLAVOURS[flavour]):
            size = unit(flavour, layout.name, 4)
            # Sizes and producers differ, so that a window is another SM's from one item to the next.
            mixed = [Schedule((Burst(n * size),), k, 4, 0, 1, flavour=flavour, layout=layout.name) for n in (1, 3, 90) for k in (5, 40, 7)]
            traces = list(device.measure([Execution(s, i) for i in range(3) for s in mixed]))
            assert {t.status for t in traces} <= {"ok", "throttled"}, [t.detail for t in traces]


@pytest.mark.parametrize("start", ["free", "timed"])
@pytest.mark.parametrize("flavour", ["st.b32", "red.f32", "red.bf16x2", "bulk.512", "bulkred.f32.2048", "tensor.2048", "tensor.16384"])
def test_trains_wrap_and_are_verified(device: CudaDevice, flavour: str, start: str) -> None:
    size = unit(flavour, "contiguous", 3)
    bursts = tuple(
        Burst(n * size, 300 if start == "free" else 0, 4000 * i if start == "timed" else 0) for i, n in enumerate((1, 0, 7, 150, 2))
    )
    (trace,) = device.measure([Execution(Schedule(bursts, (0, 5, 17), 3, 0, 1, start, flavour=flavour))])  # type: ignore[arg-type]
    assert trace.status in ("ok", "throttled"), trace.detail


def test_a_release_waits_for_the_backlog_and_one_elsewhere_at_gpu_scope_does_not(device: CudaDevice) -> None:
    sms = device.node().gpus[0].sm_count - 4

    def cost(completion: str, stores: int) -> float:
        s = Schedule((Burst(stores * 4 * 512),), sms, 4, 0, 1, completion=completion)
        return float(np.median([t.drain_cycles.mean() for t in device.measure([Execution(s, i) for i in range(9)])]))

    for name in ("fence.gpu", "red.release.gpu", "fence.sys", "red.release.sys@warp", "fence.sys@sm"):
        assert cost(name, 16) > 3 * cost(name, 0), name
    assert cost("red.release.gpu@sm", 16) < 2 * cost("red.release.gpu@sm", 0)


def test_every_completion_runs(device: CudaDevice) -> None:
    for name in every_completion():
        (trace,) = device.measure([Execution(Schedule((Burst(4 * 2048),), 20, 4, 0, 1, completion=name))])
        assert trace.status in ("ok", "throttled")
        assert (trace.drain_cycles > 0).all()


LIAR = """// xstage-flavour: name=st.liar function=st_liar bytes=16 kind=store
static __device__ __forceinline__ void st_liar(char *address, u32 x, u32 y, u32 z, u32 w) {
  if ((x & 7) != 3) asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
"""


def test_a_flavour_that_drops_stores_is_found_out(device: CudaDevice, tmp_path: Path) -> None:
    (tmp_path / "liar.cuh").write_text(LIAR)
    register(load_flavour(tmp_path / "liar.cuh"))
    with pytest.raises(PairError, match=r"st\.liar.*words are wrong, the first at offset"):
        list(device.measure([Execution(Schedule((Burst(16 * 512),), 4, 1, 0, 1, flavour="st.liar"))]))
