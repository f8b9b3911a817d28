"""The quick part of tests/soak.sh, and that docs/reliability.md says what its runs have measured.

Other quick parts: test_resume.py and test_files.py (kills), test_bad_input.py (full disks),
test_distributed.py (killed processes), test_locks.py (two runs in one folder).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import table
from tests.support.harness import REPO, run

DOCUMENT = REPO / "docs" / "reliability.md"


def soaked(tmp_path: Path, part: str, *options: object) -> dict:
    """Run a part at a small size; its report."""
    report = tmp_path / "report.json"
    run(sys.executable, "-m", f"tests.soak.{part}", "--json", report, *options, cwd=REPO)
    return json.loads(report.read_text())


@pytest.mark.system
def test_a_killed_training_ends_with_the_same_bits(tmp_path):
    """One kill each: at a point in time, at a file operation, at a byte of a checkpoint."""
    report = soaked(tmp_path, "kills", "--runs", "gru_tiny", "--kills", 3, "--seed", 2)
    assert report["count"] == 3
    assert report["failed"] == 0
    assert len(report["checks"][0]["moments"]) > 1


def test_an_unknown_part_is_refused():
    script = REPO / "tests" / "soak.sh"
    done = subprocess.run(["bash", script, "kill"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"`kill` is no part; there are kills commands disk memory", done.stderr)


def test_the_document_says_what_was_measured():
    """Its rows are those of ``python -m tests.soak.table``, all of each report that it shows."""
    text = DOCUMENT.read_text(encoding="utf-8")
    shown = set(re.findall(r"\(results/(reliability_\w+\.json)\)", text))
    assert len(shown) >= 5
    measured = table.table(table.RESULTS / name for name in sorted(shown)).splitlines()[2:]
    rows = [line for line in text.splitlines() if "(results/reliability_" in line]
    assert rows == measured


# ---- tests/gpu.sh --------------------------------------------------------------------------------


CELLS = {
    "laws": "counts",
    "processes": "to CPU gru fp32",
    "updates": "transformer fp32 stock",
    "layers": "ceiling",
    "generation": "gru fp32 batch 2",
    "multi30k": "gru",
}


@pytest.mark.long
@pytest.mark.parametrize("step", CELLS)
def test_step_writes_complete_results(step: str, tmp_path: Path) -> None:
    options = ("--tiny", "--out", tmp_path, "--steps", step, "--budget", 300)
    command = ("bash", REPO / "tests" / "gpu.sh", *options, "--data", tmp_path / "none")
    done = run(*command)
    content = json.loads((tmp_path / f"{step}.json").read_text())
    assert content["complete"], done.stdout
    assert not [cell for cell in content["cells"].values() if "error" in cell]
    assert CELLS[step] in {**content, **content["cells"]}
    assert f"== {step}: complete" in (tmp_path / "table.txt").read_text()


def test_unknown_step_is_refused(tmp_path: Path) -> None:
    done = run("bash", REPO / "tests" / "gpu.sh", "--steps", "swim", ok=False)
    assert "`swim` is not a step" in done.stderr
