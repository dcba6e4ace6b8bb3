"""The stamps' tests share a maker of buffers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
