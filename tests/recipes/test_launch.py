"""Recipes on several GPUs and nodes: what they would start, and how nodes meet."""

import subprocess
from pathlib import Path

import pytest

from tests.support import slurm
from tests.support.harness import wait_for
from tests.support.recipes import ENVIRONMENT, RECIPES, Command, bash, commands, library

IWSLT, SLURM = RECIPES / "muse" / "iwslt14_de_en.sh", RECIPES / "slurm.sh"
TWO_NODES = {"GPUS": "4", "NODES": "2", "RENDEZVOUS": "first:29500"}
MEET = ["torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint"]


def training(*command: object, **environment: str) -> tuple[list[str], Command]:
    """Return the launcher's words before ``fairseq-train`` in a dry run, and all words."""
    shown = bash(*command, DRY_RUN="1", SMOKE="0", **environment).stderr
    (words,) = [words for words in commands(shown) if "fairseq-train" in words]
    return words[: words.index("fairseq-train")], words


@pytest.mark.parametrize(
    ("environment", "launcher", "freq", "tokens"),
    [
        ({}, [], 4, 4000),
        ({"GPUS": "4"}, ["torchrun", "--standalone"], 1, 4000),
        (TWO_NODES, [*MEET, "first:29500", "--rdzv-id", "checkpoints"], 1, 2000),
    ],
)
def test_an_update_is_the_same_on_any_number_of_gpus(environment, launcher, freq, tokens, tmp_path):
    before, words = training(IWSLT, "--out", tmp_path / "run", **environment)
    ending = ["--nproc-per-node", "4", "--no-python"] if launcher else []
    assert before == [*launcher, *ending]
    assert words.values("--update-freq", "--max-tokens") == [str(freq), str(tokens)]


@pytest.mark.parametrize(
    ("processes", "flags", "expected"),
    [
        (1, "--batch-size=32", "--batch-size 32"),
        (4, "--batch-size 32", "--batch-size 8"),
        (6, "--update-freq 4 --max-tokens=1000 --x 1", "--update-freq 2 --max-tokens 333 --x 1"),
        (2, "--update-freq 3 --update-freq 4", "--update-freq 3 --update-freq 2"),
    ],
)
def test_flags_are_spread(processes: int, flags: str, expected: str) -> None:
    done = library(f'spread_update {flags}; echo "${{spread[@]}}"', GPUS=str(processes))
    assert done.stdout == f"{expected}\n"


def test_one_gpu_is_seen_unless_more_are_asked_for() -> None:
    script = 'echo "${CUDA_VISIBLE_DEVICES-all}"'
    assert library(script).stdout == "0\n"
    assert library(script, GPUS="2").stdout == "all\n"
    assert library(script, CUDA_VISIBLE_DEVICES="3").stdout == "3\n"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"GPUS": "0"}, "`GPUS` must be a positive whole number, but is `0`."),
        ({"NODES": "2"}, "`RENDEZVOUS` must be HOST:PORT of the first of 2 nodes, but is ``."),
        ({"NODES": "2", "RENDEZVOUS": "first"}, "`RENDEZVOUS` must be HOST:PORT"),
        ({"JOIN": "1"}, "`JOIN=1` must come with the `NODES`"),
        ({"RESTARTS": "-1"}, "`RESTARTS` must be a whole number, but is `-1`."),
        ({"GPUS": "3"}, "3 processes must share a batch of 32 sentences"),
    ],
)
def test_what_cannot_be_launched_is_said(environment: dict[str, str], message: str) -> None:
    done = library("spread_update --batch-size 32", ok=False, **environment)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_node_that_joins_only_trains(tmp_path: Path) -> None:
    command = (IWSLT, "--out", tmp_path / "run")
    assert training(*command, **TWO_NODES) == training(*command, JOIN="1", **TWO_NODES)
    output = bash(*command, DRY_RUN="1", SMOKE="0", JOIN="1", **TWO_NODES).stderr
    assert [words[0] for words in commands(output)] == ["mkdir", "cd", "mkdir", "torchrun"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_slurm_starts_the_recipe_on_all_its_nodes(nodes: int, tmp_path: Path) -> None:
    programs = slurm.install(tmp_path / "bin")
    job = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_GPUS_ON_NODE": "4"}
    job |= {"SLURM_JOB_NODELIST": "nodes", "PATH": f"{programs}:{ENVIRONMENT['PATH']}"}
    before, _ = training(SLURM, IWSLT, "--out", tmp_path / "run", **job)
    if nodes == 1:
        per_node = ["--nproc-per-node", "4", "--no-python"]
        assert before == ["torchrun", "--standalone", "--max-restarts", "3", *per_node]
    else:
        assert before[:4] == ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
        assert before[5:12] == [*MEET, "localhost:23456"]
    assert "slurm.sh: error: use it as: sbatch" in bash(SLURM, ok=False).stderr


# A training that notes who takes part, and is done once it has been started twice.
TRAINING = """#!/bin/bash
echo "$WORLD_SIZE" >"rank$RANK-start$SLURM_RESTART_COUNT"
if [[ ! -e made/checkpoint_last.pt ]]; then
    [[ "$RANK" != 0 ]] || echo 1 >made/checkpoint_last.pt
    sleep 600
fi
"""
SLEEP = """#!/bin/sh
[ "$1" = 600 ] || exec /bin/sleep 0.1  # a node that joins looks more often
exec /bin/sleep 600
"""
RECIPE = """
source "{recipes}/lib.sh"
open_run "{out}" x=1
stage corpus touch corpus-made
stage train train made --max-tokens 8
stage score touch "scored-at-start-$SLURM_RESTART_COUNT-by-${{JOIN:-0}}"
exit 7
"""


@pytest.fixture
def job(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that submits a recipe to ``run``, and its environment."""
    programs = slurm.install(tmp_path / "bin")
    for name, text in (("fairseq-train", TRAINING), ("sleep", SLEEP)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "recipe.sh").write_text(RECIPE.format(recipes=RECIPES, out=tmp_path / "run"))
    environment = {**ENVIRONMENT, "PATH": f"{programs}:{ENVIRONMENT['PATH']}"}
    environment |= {"SLURM_STANDIN": str(tmp_path)}
    words = [programs / "sbatch", "--nodes", "2", RECIPES / "slurm.sh", tmp_path / "recipe.sh"]
    return [*map(str, words)], environment


@pytest.mark.system
def test_a_job_on_two_nodes_is_queued_again_and_has_the_recipes_status(job, tmp_path):
    words, environment = job
    run = tmp_path / "run"
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len([*run.glob("rank?-start0")]) == 4, process)
    wait_for((run / "made" / "checkpoint_last.pt").exists, process)
    (tmp_path / "limit").touch()
    _, output = process.communicate(timeout=300)
    assert process.returncode == 7, output
    assert output.count(f"the time limit is near; job {slurm.JOB} is queued again") == 1
    starts = {f"rank{rank}-start{start}" for rank in range(4) for start in range(2)}
    assert {path.name for path in run.glob("rank*")} == starts
    assert {path.read_text() for path in run.glob("rank*")} == {"4\n"}
    assert [path.name for path in run.glob("scored-*")] == ["scored-at-start-1-by-0"]
    assert "corpus: done before" in output
