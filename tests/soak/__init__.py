"""The long checks of docs/reliability.md, one module for each part of ``tests/soak.sh``.

``python -m tests.soak.PART --json FILE`` runs one from the repository's root.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the tests share
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))  # machine()
