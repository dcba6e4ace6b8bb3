"""Compile every kernel of ``cuda/`` for every architecture it can run on, without a GPU, and print each one's size (``make kernels``)."""

from __future__ import annotations

import sys

from xstage_bench.device.cuda.compile import ALSO, HOPPER, architectures_of, compile_kernel
from xstage_bench.errors import XStageError
from xstage_bench.io.assets import asset_dir

if __name__ == "__main__":
    failed = 0
    for source in sorted(path.name for path in asset_dir("cuda").glob("*.cu")):
        declared = architectures_of(source)
        for arch in (*declared, *(() if declared == (HOPPER,) else ALSO)):
            try:
                print(f"{source:20} {arch:8} {len(compile_kernel(source, arch, cache=False)):8} bytes")
            except XStageError as error:
                failed += 1
                print(f"{source:20} {arch:8} {error}", file=sys.stderr)
    sys.exit(failed > 0)
