"""Put the errors of recorded runs into results/reference/errors.json, which models are held against (xstage_bench/model_gate.py).

    python tests/claims/reference_errors.py --name h200-nv18 --gpu "NVIDIA H200" --default RUN/validation.json [MORE/validation.json ...]
    python tests/claims/reference_errors.py --name host --gpu "NVIDIA H200" --to host --default --bar node:holdout:0.05:0.25:0.975:0.85

Of several pairs the worst of each score is taken, and of files joined by a plus; of several files, for each flavour and family the first
that has it. Of tiny bursts p95 alone is judged. A yardstick of the same name and destination is replaced. `--bar
MODEL:FAMILY:MEDIAN:P95:STALL:COVERAGE` sets a bar where nothing was recorded (a dash: not judged). Every yardstick says where its numbers
are from: the paths given, and the bars.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from xstage_bench.io.assets import asset_dir
from xstage_bench.io.json_file import write_json
from xstage_bench.judge.gate import ERRORS_NAME, PLAIN, ReferenceErrors, Yardstick, YardstickFile, yardsticks
from xstage_bench.model.cells import TINY
from xstage_bench.model.document import ModelScore, load_validation

PATH = asset_dir("results") / "reference" / ERRORS_NAME
FORMS = ("node", "burst_gap")


def worst(scores: list[ModelScore]) -> ReferenceErrors:
    """Return the worst of each score of one model, family and flavour; the law of three parameters has no interval to judge."""
    first = scores[0]
    tail = max(s.issue_time.p95_error for s in scores if s.issue_time.p95_error is not None)
    found = ReferenceErrors(flavour=first.flavour, family=first.family, model=first.model, p95_error=tail)
    if first.family == TINY:
        return found
    covers = [s.interval_coverage_90 for s in scores if s.interval_coverage_90 is not None and s.model == "node"]
    right = [s.regime_balanced_accuracy for s in scores if s.regime_balanced_accuracy is not None]
    return replace(
        found,
        median_error=max(s.issue_time.median_error for s in scores if s.issue_time.median_error is not None),
        regime_balanced_accuracy=min(right, default=None),
        interval_coverage_90=min(covers, default=None),
    )


def errors_of(files: list[str]) -> list[ReferenceErrors]:
    """Return the errors of recorded validations; a flavour's come from the first file that has it."""
    found: dict[tuple[str, str, str], list[ModelScore]] = {}
    owner: dict[tuple[str, str], str] = {}
    for joined, path in [(group, Path(path)) for group in files for path in group.split("+")]:
        validation = load_validation(path)
        for score in validation.families or validation.models:
            mine = owner.setdefault((score.flavour, score.family), joined) == joined
            if score.model in FORMS and mine and any(s.flavour == score.flavour for s in validation.models):
                found.setdefault((score.flavour, score.family, score.model), []).append(score)
    return [worst(scores) for _, scores in sorted(found.items())]


def bar(text: str) -> ReferenceErrors:
    """Read a bar."""
    model, family, *numbers = text.split(":")
    median, p95, stall, coverage = (None if n == "-" else float(n) for n in numbers)
    return ReferenceErrors(
        flavour=PLAIN, family=family, model=model, median_error=median, p95_error=p95, regime_balanced_accuracy=stall,
        interval_coverage_90=coverage, bar=True,
    )  # fmt: skip


def main() -> int:
    """Replace one yardstick."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--name", required=True)
    parser.add_argument("--gpu", action="append", default=[])
    parser.add_argument("--to", choices=["gpu", "host"], default="gpu")
    parser.add_argument("--default", action="store_true")
    parser.add_argument("--bar", action="append", default=[])
    parser.add_argument("--source", help="In words, instead of the paths.")
    given = parser.parse_args()
    said = [given.source or ", ".join(given.files)] if given.files or given.source else []
    said += ["no recording yet of " + ", ".join(b.split(":")[1] for b in given.bar) + ": the bars set for it"] if given.bar else []
    new = Yardstick(
        name=given.name, gpus=given.gpu, destination=given.to, default=given.default, source="; ".join(said),
        errors=[*errors_of(given.files), *map(bar, given.bar)],
    )  # fmt: skip
    old = yardsticks() if PATH.exists() else ()
    kept = [y for y in old if (y.name, y.destination) != (new.name, new.destination)]
    write_json(PATH, YardstickFile(schema_version=1, yardsticks=[*kept, new]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
