"""A limit on the address space (``ulimit -v``) that is too small is an error before anything is loaded.

OpenBLAS, which numpy and scipy load, asks for its buffers again and again when there is no room for them: it spins in the loading of a
library, where no exception can reach it. So the room is looked at before.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence

#: Bytes of address space, most of it never touched. Measured with two threads: what loads arrays alone takes 0.5 GB; a fit, figures or the
#: reading of many files take 2.0 GB.
LEAST_TO_LOAD, LEAST_TO_FIT = 900_000_000, 2_200_000_000
_NO_ARRAYS = ("explain", "doctor", "topo", "probes")
_FIT = ("fit", "profile", "validate", "report", "fleet")


def require_room(words: Sequence[str]) -> None:
    """Raise MemoryError when the verb cannot be loaded within the limit; within a limit, libraries start one thread each.

    Parameters
    ----------
    words : sequence of str
        The command line, without the program's name.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # each thread reserves tens of megabytes
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb is None or verb in _NO_ARRAYS or {"--help", "-h"} & {*words}:
        return
    least = LEAST_TO_FIT if verb in _FIT else LEAST_TO_LOAD
    if limit < least:
        raise MemoryError(f"{verb} needs {least / 1e9:.1f} GB of address space, and the limit is {limit / 1e9:.1f} GB")
