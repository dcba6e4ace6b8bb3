"""What an exported model holds: its stages, how SMs share the link, and where the numbers come from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from xstage_bench.errors import DataError
from xstage_bench.io.json_file import encode_json
from xstage_bench.model.document import Model, PairModel
from xstage_bench.model.run_fit import find_model, is_simulated
from xstage_bench.model.stage import Stage, stage_at, stages
from xstage_bench.record.manifest import MANIFEST_NAME, load_manifest
from xstage_bench.version import __version__

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the numbers come from. What only a run folder knows is null for a bare model.json.

    Parameters
    ----------
    source : str
        The model.json or run folder, as it was named.
    model : str
        16 hex digits over the content of model.json.
    backend, gpu : str
    simulated : bool
    gpu_uuids : list of str
    driver, measured : str or None
        Driver version; when the run began (ISO 8601, UTC).
    xstage_bench : str
        Version that exported.
    """

    source: str
    model: str
    backend: str
    simulated: bool
    gpu: str
    gpu_uuids: list[str]
    driver: str | None
    measured: str | None
    xstage_bench: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SmShare:
    """How the SMs of one pair's source share the link when all of them store (docs/node-model.md).

    Parameters
    ----------
    pair : str
    share : list of float
        By smid: rate of this SM over the mean of all; 1 where the map does not have the smid.
    """

    pair: str
    share: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """A model as every format carries it. `sm_share` has an entry for each pair whose map of SMs was measured."""

    schema_version: int
    provenance: Provenance
    stages: list[Stage]
    sm_share: list[SmShare]


def exported_model(where: Path, at: tuple[int, int] | None = None) -> ExportedModel:
    """Read the model of a run folder, or a model.json, for export.

    Parameters
    ----------
    where : Path
    at : (int, int), optional
        Producers and warps of a kernel: their stage is added for each pair, flavour and layout, interpolated where it was not fitted.

    Raises
    ------
    UsageError
        Nothing is there, or the run has not been fitted.
    DataError
        It is no model, or no issue time was identified for any of its pairs.
    """
    try:
        model = find_model(where)
    except DataError as error:
        if where.is_file():
            raise DataError(f"{where} is a file and no model: {error.message}", "name a model.json, or the run folder") from error
        raise
    found = stages(model)
    if not found:
        raise DataError(f"{where}: no issue time was identified for any pair", "measure again: xstage profile")
    if at is not None:
        kinds = list(dict.fromkeys((s.pair, s.flavour, s.layout) for s in found))
        own = (stage_at(model, *at, pair=pair, flavour=flavour, layout=layout) for pair, flavour, layout in kinds)
        found = sorted([*found, *(s for s in own if s not in found)], key=lambda s: kinds.index((s.pair, s.flavour, s.layout)))
    shares = [s for pair in model.pairs if (s := sm_share(pair)) is not None]
    return ExportedModel(schema_version=SCHEMA_VERSION, provenance=provenance(where, model), stages=found, sm_share=shares)


def provenance(where: Path, model: Model) -> Provenance:
    """Return where a model comes from; a run folder's manifest adds GPUs, driver and date."""
    uuids: list[str] = []
    driver = measured = None
    if (where / MANIFEST_NAME).is_file():
        manifest = load_manifest(where)
        uuids = [g.uuid for g in manifest.node.gpus if g.uuid is not None]
        measured = manifest.created
        nvml = (manifest.environment_before or {}).get("nvml") or {}
        driver = nvml.get("driver")
    return Provenance(
        source=str(where), model=hashlib.blake2b(encode_json(model), digest_size=8).hexdigest(), backend=model.backend,
        simulated=is_simulated(model), gpu=model.gpu, gpu_uuids=uuids, driver=driver, measured=measured, xstage_bench=__version__,
    )  # fmt: skip


def sm_share(pair: PairModel) -> SmShare | None:
    """Return how the pair's SMs share the link, or None where the map was not measured.

    Notes
    -----
    Units share R evenly and so do the SMs of a unit: with U units, n_u SMs in this one and N in all, N / (U n_u).
    """
    basis = pair.node_basis
    if basis is None or not basis.placement.measured:
        return None
    units, smids = basis.placement.units, basis.placement.smids
    share = [1.0] * (smids[-1] + 1)
    for unit in units:
        for smid in unit:
            share[smid] = len(smids) / (len(units) * len(unit))
    return SmShare(pair=pair.pair, share=share)
