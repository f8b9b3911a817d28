"""Every step of ``tests/gpu.sh`` runs on the CPU with tiny sizes and writes complete results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.harness import REPO, run

CELLS = {
    "laws": "counts",
    "processes": "to CPU gru fp32",
    "layers": "ceiling",
    "generation": "gru fp32 batch 2",
}


@pytest.mark.long
@pytest.mark.parametrize("step", CELLS)
def test_step_writes_complete_results(step: str, tmp_path: Path) -> None:
    options = ("--tiny", "--out", tmp_path, "--steps", step, "--budget", 300)
    done = run("bash", REPO / "tests" / "gpu.sh", *options)
    content = json.loads((tmp_path / f"{step}.json").read_text())
    assert content["complete"], done.stdout
    assert not [cell for cell in content["cells"].values() if "error" in cell]
    assert CELLS[step] in {**content, **content["cells"]}
    assert f"== {step}: complete" in (tmp_path / "table.txt").read_text()


def test_unknown_step_is_refused(tmp_path: Path) -> None:
    done = run("bash", REPO / "tests" / "gpu.sh", "--steps", "swim", ok=False)
    assert "`swim` is not a step" in done.stderr
