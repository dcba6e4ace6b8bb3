"""How many SMs the GPU of a model has: of the model first, then of the registry."""

from __future__ import annotations

from xstage_bench.errors import DataError
from xstage_bench.machine.gpus import find_gpu
from xstage_bench.model.document import Model


def sms_of(model: Model, pair: str | None = None) -> int:
    """Return the number of SMs of the GPU that stores in a pair.

    Parameters
    ----------
    model : Model
    pair : str, optional
        Default: ``0>1``.

    Notes
    -----
    The map of a node model has every SM of its GPU. A model without one: the registry's count for the GPU's name, else the largest K that
    was fitted, which the probes take from the GPU.

    Raises
    ------
    DataError
        The model has none of these.
    """
    source = f"{(pair or '0>1').partition('>')[0]}>"
    own = [p for p in model.pairs if p.pair.startswith(source)]
    for found in (*own, *model.pairs):
        if found.node_basis is not None:
            return len(found.node_basis.placement.smids)
    facts = find_gpu(model.gpu)
    if facts is not None and facts.sm_count.value is not None:
        return int(facts.sm_count.value)
    most = max((e.producers for p in own or model.pairs for e in p.burst_gap), default=0)
    if not most:
        raise DataError(f"the model does not say how many SMs {model.gpu} has", "measure the probes isolated, periodic, timed; xstage fit")
    return most
