"""Public values show themselves on one short line."""

import pytest

from xstage_bench import Burst, Schedule, load_model, predict
from xstage_bench.io.assets import asset_dir


@pytest.mark.parametrize("bursts", [1, 500])
def test_a_value_shows_its_fields_in_short(bursts: int) -> None:
    model = load_model(asset_dir("results") / "reference" / "h200-nv18")
    schedule = Schedule((Burst(65536),) * bursts, 132, 4)
    predicted = predict(model, schedule)
    for value, words in ((model, "gpu='NVIDIA H200'"), (schedule, "producers=132"), (predicted, f"issue_cycles=<float64 {bursts}>")):
        assert words in repr(value)
        assert len(repr(value)) < 1000
        assert "\n" not in repr(value)
