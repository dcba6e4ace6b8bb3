"""A node of two H200 as it was fitted on 2026-11-29: what tests of everything behind a fit use. It stays as it is; recordings do not."""

from pathlib import Path

#: Model and manifest of the run, without its samples.
RUN = Path(__file__).parent / "data" / "h200"
MODEL = RUN / "model.json"
