"""The record's tests share one deterministic device; `record_fake` is also imported by the writer process that gets killed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
