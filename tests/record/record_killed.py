"""Run as a process that the test kills: resumes or starts the folder named, writes a plan slowly, then finishes it."""

import sys
import time
from pathlib import Path

from record_fake import make_manifest, make_plan, make_schedules, write_plan

from xstage_bench.record.writer import RunWriter

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with RunWriter(folder, make_manifest(), resume=folder.exists()) as writer:
        ready = False
        for entry in make_plan(make_schedules(12), repetitions=5):
            process, _, execution = entry
            if (execution.schedule.key(), process, execution.repetition) in writer.done:
                continue
            write_plan(writer, [entry], flush_every=1)
            if not ready:
                print("ready", flush=True)
                ready = True
            time.sleep(0.001)
        writer.finish()
