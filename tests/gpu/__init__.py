"""The steps of ``tests/gpu.sh``: one module for each, all with the options of :mod:`.results`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
