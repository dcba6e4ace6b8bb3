"""JSON Schemas of the files that scripts read, made from the dataclasses that write them: ``python -m xstage_bench.show.schemas``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from xstage_bench.io.assets import asset_dir
from xstage_bench.io.json_file import write_json

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each document, by the name of the file it describes, without ``.json``."""
    from xstage_bench.judge.fleet.screen import Fleet
    from xstage_bench.machine.facts import GpuFacts
    from xstage_bench.measure.survey import SurveyDocument
    from xstage_bench.model.document import Model, Validation
    from xstage_bench.record.manifest import Manifest
    from xstage_bench.schedule.burst_files import ScheduleFile
    from xstage_bench.schedule.scene_files import SceneFile
    from xstage_bench.schedule.task_files import TaskFile
    from xstage_bench.show.export.document import ExportedModel

    documents: dict[str, Any] = {
        "survey": SurveyDocument, "manifest": Manifest, "model": Model, "validation": Validation, "fleet": Fleet,
        "schedules": ScheduleFile, "task_schedules": TaskFile, "scenes": SceneFile, "exported_model": ExportedModel, "node": GpuFacts,
    }  # fmt: skip
    return {name: {"$schema": DRAFT, "title": f"{name}.json", **_short(msgspec.json.schema(type_))} for name, type_ in documents.items()}


def _short(schema: Any) -> Any:
    # A docstring's first line says what a thing is; the rest is for readers of the code.
    if isinstance(schema, dict):
        return {k: v.splitlines()[0] if k == "description" and isinstance(v, str) else _short(v) for k, v in schema.items()}
    return [_short(entry) for entry in schema] if isinstance(schema, list | tuple) else schema


def write_schemas(folder: Path) -> list[Path]:
    """Write ``NAME.json`` for each document into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, schema in schemas().items():
        path = folder / f"{name}.json"
        write_json(path, schema)
        written.append(path)
    return written


if __name__ == "__main__":
    for path in write_schemas(asset_dir("results") / "schemas"):
        print(path)
