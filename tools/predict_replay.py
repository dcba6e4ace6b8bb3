"""Predict what was replayed, again and again as the model improves: ``python tools/predict_replay.py MODEL FOLDER...``.

Each folder holds a replay.json.gz, and the schedules that were executed as schedules.json.gz (those of tools/skeleton_tables.py are made
anew). Its rows get the predictions, the folder above it a new summary.json; how good they are is printed.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from skeleton_tables import block_schedules, wave_schedules

from xstage_bench.io.atomic import write_bytes
from xstage_bench.io.json_file import encode_json
from xstage_bench.measure.replay_document import read_replay, summary_rows, with_predictions, write_summary
from xstage_bench.measure.replay_run import predictor
from xstage_bench.model.run_fit import find_model
from xstage_bench.schedule.task_files import load_tasks
from xstage_bench.schedule.tasks import TaskSchedule


def main(model: str, *folders: str) -> None:
    """Predict the rows of every folder."""
    loaded = find_model(Path(model))
    for folder in map(Path, folders):
        path = folder / "replay.json.gz"
        document = read_replay(path)
        document = with_predictions(document, _schedules(folder), predictor(loaded, document))
        write_bytes(path, gzip.compress(encode_json(document), 9, mtime=0))
        print(f"{folder.name}:", {k: round(v, 4) if isinstance(v, float) else v for k, v in document["prediction"].items()})
        rows = [row for row in summary_rows(document) if row["predicted_us"]]
        off = np.array([row["predicted_us"] / row["measured_us"] - 1 for row in rows])
        for i in np.argsort(-np.abs(off))[:6]:
            print(f"  {rows[i]['schedule']:60s} measured {rows[i]['measured_us']:8.1f} us, predicted {100 * off[i]:+.1f} %")
    write_summary(Path(folders[0]).parent)


def _schedules(folder: Path) -> list[TaskSchedule]:
    executed = folder / "schedules.json.gz"
    if not executed.exists():
        return list(wave_schedules() if "wave" in folder.name else block_schedules())
    with TemporaryDirectory() as place:
        path = Path(place) / "schedules.json"
        path.write_bytes(gzip.decompress(executed.read_bytes()))
        return load_tasks(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
