"""Where the asset folders (cuda, probes, analysis, results) are, in a checkout and in an installed wheel alike."""

from __future__ import annotations

from pathlib import Path

from xstage_bench.errors import XStageError


def asset_dir(name: str) -> Path:
    """Return the folder of assets called `name`.

    A wheel carries the folders in ``xstage_bench/_assets/``; an editable install and a bare checkout have them at the
    checkout's root.

    Parameters
    ----------
    name : str
        ``"cuda"``, ``"probes"``, ``"analysis"`` or ``"results"``.

    Raises
    ------
    XStageError
        Neither place has the folder: the installation is incomplete.
    """
    package = Path(__file__).resolve().parent.parent
    for root in (package / "_assets", package.parent):
        if (root / name).is_dir():
            return root / name
    raise XStageError(f"the asset folder '{name}' is missing beside {package}", "install xstage-bench again, as it was installed")


def include_dir() -> Path:
    """Return the folder of ``xstage_stage.cuh``, ``xstage_pacer.cuh`` and ``xstage_stamps.cuh``, for a compiler's ``-I``."""
    return asset_dir("cuda")
