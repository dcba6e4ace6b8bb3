"""What each flavour and layout puts on the link per byte of payload, as JSON: ``python tools/wire_efficiency.py OUT.json``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.flavour import FLAVOURS
from xstage_bench.layouts import LAYOUTS
from xstage_bench.wire import measure_wire

SHAPED = ("st.v4", "st.v2", "st.b32", "red.v4.f32", "bulk.256")


def main(out: Path, only: str = "") -> None:
    """All flavours contiguous, some in every layout, both directions; `only`: those whose name starts so."""
    device = CudaDevice()
    known = set(device.node().flavours)
    cases = [(name, "contiguous") for name, f in FLAVOURS.items() if name in known and f.alias_of is None and name != "st.v4.release.sys"]
    cases += [(name, y) for name in SHAPED for y in LAYOUTS if y != "contiguous" and LAYOUTS[y].takes(FLAVOURS[name]) and name in known]
    rows = [{"pair": f"{a}>{b}", **dataclasses.asdict(wire)} for a, b in device.node().pairs for wire in measure_wire(device, a, b, cases)]
    gpus = [{"name": g.name, "uuid": g.uuid} for g in device.node().gpus]
    device.close()
    out.write_text(json.dumps({"gpus": gpus, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
