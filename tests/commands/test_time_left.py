"""``left``: how long fairseq-train still takes, in its log and in the lines of the recipes."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_ext.evaluation.training_log import read_log
from fairseq_ext.plugin.features.time_left import clock, updates_left
from tests.support.harness import REPO, run
from tests.support.trainings import ARCHITECTURES, train

LEFT = re.compile(r"num_updates=(\d+),.* left=(\d+:\d\d:\d\d)")


def updates(max_update: int, max_epoch: int, done: int, epoch: int, inside: int = 0) -> float:
    """Of epochs of 10 batches, 3 of which are an update."""
    optimization = SimpleNamespace(max_update=max_update, max_epoch=max_epoch, update_freq=[3])
    batches = type("Batches", (), {"__len__": lambda self: 10})()
    batches.next_epoch_idx, batches.iterations_in_epoch = epoch, inside
    return updates_left(SimpleNamespace(optimization=optimization), batches, done)


def test_whichever_limit_comes_first():
    assert updates(0, 0, 0, 1) == float("inf")
    assert updates(100, 0, 40, 11) == 60
    assert updates(0, 5, 8, 3) == 12
    assert updates(0, 5, 8, 3, inside=10) == 12  # the second epoch has just ended
    assert updates(0, 5, 9, 3, inside=3) == 11  # resumed within the third
    assert updates(15, 5, 8, 3) == 7


@pytest.mark.parametrize(
    ("seconds", "output"),
    [(0, "0:00:00"), (59.6, "0:01:00"), (360_000, "100:00:00"), (-1, "0:00:00")],
)
def test_clock(seconds: float, output: str):
    assert clock(seconds) == output


def test_a_training_says_how_long_it_takes(copy_data: Path, tmp_path: Path):
    """Up to its last update, also resumed; a log without limits has no such column."""
    for limit in (3, 5):
        ends = ("--max-update", limit, "--log-file", tmp_path / "log")
        output = train(copy_data, tmp_path, *ARCHITECTURES["transformer"], *ends).stdout
        times = {int(update): left for update, left in LEFT.findall(output)}
        assert times[limit] == "0:00:00"
        assert set(times.values()) <= {f"0:00:{second:02}" for second in range(60)}
    assert min(times) == 4
    assert "| left 0:00:00" in output  # of an epoch
    assert set(read_log(tmp_path / "log").train["loss"]) == {1, 2, 3, 4, 5}


def test_lines_of_the_recipes():
    log = """\
… | INFO | train_inner | epoch 001:  100 / 300 loss=9, wps=1234.5, ups=2, wall=5, left=1:02:03
… | INFO | train_inner | epoch 001:  200 / 300 loss=8, nll_loss=7, wps=1000, ups=2, wall=5
… | INFO | valid | 1 | valid on 'valid' subset | loss 7.5 | wpb 5 | num_updates 299 | best 7
… | INFO | valid | 2 | valid on 'valid' subset | loss 6 | bleu 31.5 | wpb 5 | num_updates 599
… | INFO | train | epoch 001 | loss 8 | wps 10 | wpb 100 | num_updates 300 | train_wall 10 | wall 30
"""
    script = f"source {REPO}/recipes/lib.sh; training_progress"
    done = run("bash", "-c", script, stdin=log)
    assert done.stderr.splitlines() == [
        "  epoch 001:  100 / 300 loss=9, wps=1234.5, 1:02:03 left",
        "  epoch 001:  200 / 300 loss=8, wps=1000",
        "  update 299: valid loss 7.5",
        "  update 599: valid loss 6, bleu 31.5",
    ]
