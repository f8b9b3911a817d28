"""recipes/slurm.sh on a stand-in for Slurm, whose jobs are processes of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import slurm
from tests.support.harness import wait_for
from tests.support.recipes import ENVIRONMENT, RECIPES

pytestmark = pytest.mark.system

# A training that notes who takes part, and is done once it has been started twice.
TRAINING = """#!/bin/bash
echo "$WORLD_SIZE" >"rank$RANK-start$SLURM_RESTART_COUNT"
if [[ ! -e made/checkpoint_last.pt ]]; then
    [[ "$RANK" != 0 ]] || echo 1 >made/checkpoint_last.pt
    sleep 600
fi
"""
RECIPE = """
source "{recipes}/lib.sh"
open_run "{out}" x=1
stage corpus touch corpus-made
stage train train made --max-tokens 8
stage score touch "scored-at-start-$SLURM_RESTART_COUNT"
exit "$(cat "{out}/../status")"
"""


@pytest.fixture
def job(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that submits a recipe to ``run``, and its environment."""
    programs = slurm.install(tmp_path / "bin")
    (programs / "fairseq-train").write_text(TRAINING)
    (programs / "fairseq-train").chmod(0o755)
    (tmp_path / "recipe.sh").write_text(RECIPE.format(recipes=RECIPES, out=tmp_path / "run"))
    (tmp_path / "status").write_text("0")
    environment = {**ENVIRONMENT, "PATH": f"{programs}:{ENVIRONMENT['PATH']}"}
    environment |= {"SLURM_STANDIN": str(tmp_path)}
    words = [programs / "sbatch", "--nodes", "2", RECIPES / "slurm.sh", tmp_path / "recipe.sh"]
    return [*map(str, words)], environment


def test_a_job_on_two_nodes_is_queued_again_at_its_time_limit(
    job: tuple[list[str], dict[str, str]], tmp_path: Path
) -> None:
    words, environment = job
    run = tmp_path / "run"
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len([*run.glob("rank?-start0")]) == 2, process)
    wait_for((run / "made" / "checkpoint_last.pt").exists, process)
    (tmp_path / "limit").touch()
    _, output = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert output.count(f"the time limit is near; job {slurm.JOB} is queued again") == 1
    starts = {f"rank{rank}-start{start}" for rank in range(2) for start in range(2)}
    assert {path.name for path in run.glob("rank*")} == starts
    assert {path.read_text() for path in run.glob("rank*")} == {"2\n"}
    assert (run / "scored-at-start-1").exists()
    assert not (run / "scored-at-start-0").exists()
    assert "corpus: done before" in output


def test_the_recipes_status_is_the_jobs(
    job: tuple[list[str], dict[str, str]], tmp_path: Path
) -> None:
    words, environment = job
    (tmp_path / "status").write_text("7")
    (tmp_path / "run" / "made").mkdir(parents=True)
    (tmp_path / "run" / "settings.txt").write_text("x=1\n")
    (tmp_path / "run" / "made" / "checkpoint_last.pt").write_text("1")
    words[words.index("--nodes") + 1] = "1"
    assert subprocess.run(words, env=environment, capture_output=True, check=False).returncode == 7
