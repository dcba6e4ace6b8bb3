"""Sums before sending: no row and no weight is lost, and every slot that the owner reads is written once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xstage_bench.errors import UsageError
from xstage_bench.kernels.moe.build import Build
from xstage_bench.kernels.moe.layer import PADDING, Layer, rows_of
from xstage_bench.kernels.moe.measure import remote_bytes
from xstage_bench.kernels.moe.presum import ALONE, present, sum_slots, sums_of
from xstage_bench.workloads.shapes import MoEShape, moe_shape


@st.composite
def layers(draw: Any) -> Layer:
    ep = draw(st.sampled_from([1, 2, 4, 8]))
    experts = ep * draw(st.integers(1, 6))
    shape = MoEShape(
        name="t",
        model="t",
        hidden=128,
        inter=128,
        experts=experts,
        top_k=draw(st.integers(1, min(experts, 8))),
        layers=1,
        grade="A",
        source="t",
    )
    routing = draw(st.sampled_from(["balanced", "skewed", "concentrated"]))
    return Layer(shape, draw(st.integers(1, 60)), ep, "bf16", routing, draw(st.sampled_from([0.0, 0.3, 1.0])), draw(st.integers(0, 99)))


@given(layers())
@settings(max_examples=60, deadline=None)
def test_the_owners_get_what_they_would_have_got_row_by_row(layer: Layer) -> None:
    weights = layer.weights()
    values = np.random.default_rng(1).normal(size=weights.shape)
    slots = np.full((layer.ep, layer.tokens, layer.ep), np.nan)
    assert (np.sort(sum_slots(layer).ravel()) == np.arange(layer.tokens * layer.ep)).all()
    for rank in range(layer.ep):
        rows = rows_of(layer, rank)
        sums = sums_of(layer, rows)
        real = rows.owner != PADDING
        assert (sums.parts > 0).tolist() == real.tolist()
        assert ((sums.number != ALONE) == (sums.parts > 1)).all()
        added, total = np.zeros(sums.sums, dtype=int), np.zeros(sums.sums)
        sent = 0
        for row in np.random.default_rng(2).permutation(np.flatnonzero(real)):
            owner, token, k = rows.owner[row], rows.token[row], rows.k[row]
            result = sums.weight[row] * values[owner, token, k]
            if sums.number[row] != ALONE:
                added[sums.number[row]] += 1
                total[sums.number[row]] += result
                if added[sums.number[row]] < sums.parts[row]:
                    continue
                result = total[sums.number[row]]
            assert np.isnan(slots[owner, token, rank])  # once
            slots[owner, token, rank] = result
            sent += 1
        assert sent == sums.sent
    for owner in range(layer.ep):
        here = present(layer, owner)
        assert (np.isnan(slots[owner]) == (here == 0)).all()
        np.testing.assert_allclose(np.where(here > 0, slots[owner], 0).sum(axis=1), (weights[owner] * values[owner]).sum(axis=1), atol=1e-5)


def test_fewer_bytes_leave() -> None:
    layer = Layer(moe_shape("dsv4-flash"), 512, 8)
    rows = rows_of(layer, 3)
    tokens = {(o, t) for o, t in zip(rows.owner.tolist(), rows.token.tolist(), strict=True) if o not in (PADDING, 3)}
    assert remote_bytes(rows, 3, layer.shape.hidden, "bf16", presum=True) == len(tokens) * layer.shape.hidden * 2
    assert remote_bytes(rows, 3, layer.shape.hidden, "fp8") * 2 == remote_bytes(rows, 3, layer.shape.hidden, "bf16")
    assert len(tokens) < ((rows.owner != PADDING) & (rows.owner != 3)).sum()


@pytest.mark.parametrize("build", [{"combine": "fp8"}, {"combine": "none"}, {"row_store": "bulk"}], ids=str)
def test_what_cannot_be_summed_is_refused(build: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="sums before sending"):
        Build(presum=True, **build)
