"""Files of other programs, told by their content: a refusal names what was given instead of the first thing wrong with it."""

from __future__ import annotations

import re

_LOOKED_AT_BYTES = 1 << 14
#: What begins so.
_BINARY = (
    (b"PK\x03\x04", "a zip file (npz, xlsx)"), (b"\x1f\x8b", "a gzip file without .gz in its name"), (b"\x93NUMPY", "a numpy array"),
    (b"SQLite format 3", "an SQLite data base, as Nsight Systems exports"), (b"\x89HDF", "an HDF5 file"), (b"ARROW1", "an Arrow file"),
    (b"\x89PNG", "a picture"), (b"%PDF", "a PDF"), (b"XSTP", "a dump of stamps, which xstage import reads"),
)  # fmt: skip
#: What holds this near its beginning; the first that fits is named.
_TEXT = tuple(
    (re.compile(pattern, re.IGNORECASE | re.MULTILINE), what)
    for pattern, what in (
        (rb'"nvbandwidth"|^nvbandwidth version', "an nvbandwidth result"),
        (rb'"traceEvents"|"ph"\s*:\s*"[XBEMiC]"', "a Chrome trace"),
        (rb'Time \(%\).*Total Time|Start \((?:ns|s|us)\).*Duration \(|"ID","Process ID"|^==PROF==', "Nsight output"),
        (rb"^(?:\x1b\[\d+m)?\s*(?:\x1b\[\d+m)?\s*GPU0\s", "the output of nvidia-smi topo -m"),
        (rb"nccl-tests version|^# nThread \d+ nGpus", "an nccl-tests result"),
        (rb"^\s*<(?:\?xml|!doctype|html)", "XML or HTML"),
        (rb'"sm_clock_mhz".*"pairs"\s*:|"pairs"\s*:.*"burst_gap"', "a model of xstage"),
        (rb'"provenance"\s*:.*"stages"\s*:|^\[provenance\]', "an export of a model for other programs; xstage reads the model.json itself"),
        (rb'"models"\s*:.*"n_schedules"', "a validation of xstage"),
        (rb"^\W*probe\W.*\bissue_", "the samples of a run, as xstage export writes them"),
    )
)


def what_it_is(data: bytes) -> str | None:
    """Return what a file is, with its article, or None where nothing is recognised."""
    for magic, what in _BINARY:
        if data.startswith(magic):
            return what
    head = data[:_LOOKED_AT_BYTES].removeprefix(b"\xef\xbb\xbf")
    text = re.sub(rb"\s*\n\s*", b" ", head) if head.lstrip()[:1] in (b"{", b"[") else head
    return next((what for pattern, what in _TEXT if pattern.search(text)), None)
