"""What to type after a verb: one line for each, filled in with what was typed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

#: Verb: what follows when all is well, and what else where that differs. A word in braces is a parameter of the verb, or stands for itself.
FOLLOWING: dict[str, tuple[str, ...]] = {
    "profile": ("xstage check {folder}",),
    "doctor": ("xstage topo", "xstage profile --backend sim"),
    "topo": ("xstage plan", "xstage profile --backend sim"),
    "probes": ("xstage plan --only NAME",),
    "plan": ("xstage profile",),
    "run": ("xstage fit {folder}",),
    "replay": ("xstage report {folder}/replay.json",),
    "measure": ("xstage report {path}",),
    "fused": ("xstage explain gain",),
    "fit": ("xstage validate {run}",),
    "validate": ("xstage report {run}",),
    "predict": ("xstage advise {model} --bytes 32768 --tile-ns 4500 --tiles 12",),
    "advise": ("xstage predict {model} {path}",),
    "report": ("xstage check {run}",),
    "check": ("xstage predict {run} SCHEDULE", "xstage report {run}"),
    "export": ("xstage predict {where} SCHEDULE",),
    "compare": ("xstage explain verdict", "xstage check RUN"),
    "nodes": ("xstage predict {name} SCHEDULE",),
    "diagnose": ("xstage explain drain",),
    "import": ("xstage predict MODEL SCHEDULE",),
    "explain": ("xstage profile",),
    "fleet": ("xstage report RUN", "xstage check RUN"),
}
_ABSENT = {"folder": "RUN", "path": "FILE", "schedule": "SCHEDULE", "name": "NAME"}


def following(verb: str, given: Mapping[str, object], ended_well: bool) -> str | None:
    """Return the command that comes after `verb`; null for a verb that names none."""
    lines = FOLLOWING.get("replay" if verb == "run" and given.get("compute") else verb)
    typed = {name: shlex.quote(str(value)) for name, value in given.items() if isinstance(value, (str, Path)) and str(value) != "-"}
    return None if lines is None else lines[0 if ended_well else -1].format_map(_ABSENT | typed)
