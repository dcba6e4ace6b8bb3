"""What each flavour and layout puts on the link per byte of payload, as JSON: ``python tools/wire_efficiency.py OUT.json``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.measure.arrival import cases
from xstage_bench.measure.wire import measure_wire


def main(out: Path, only: str = "") -> None:
    """All flavours contiguous, some in every layout, both directions; `only`: those whose name starts so."""
    device = CudaDevice()
    chosen = [(name, layout) for name, layout in cases(device.node().flavours) if name != "st.v4.release.sys"]
    rows = [{"pair": f"{a}>{b}", **dataclasses.asdict(wire)} for a, b in device.node().pairs for wire in measure_wire(device, a, b, chosen)]
    gpus = [{"name": g.name, "uuid": g.uuid} for g in device.node().gpus]
    device.close()
    out.write_text(json.dumps({"gpus": gpus, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
