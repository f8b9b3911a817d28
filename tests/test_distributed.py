"""Two processes on the CPU train as one process with ``--update-freq 2`` does."""

from __future__ import annotations

import re

import pytest
from compat_tools import ARCHITECTURES, TRAINING, load
from harness import BIN, USER_DIR, run

pytestmark = pytest.mark.system

RUN = (*TRAINING, "--dropout", 0, "--max-epoch", 2, "--save-interval", 2)
LAST = "checkpoint_last.pt"


def losses(log: str) -> list[float]:
    """Training and validation losses of all epochs."""
    return [float(loss) for loss in re.findall(r"\| (?:train|valid) \| .*? \| loss (\S+)", log)]


def torchrun(*command: object, **options: object):
    return run("torchrun", "--standalone", "--nproc_per_node", 2, BIN / command[0], *command[1:])


def difference(left: dict, right: dict) -> float:
    return max((left[name] - right[name]).abs().max().item() for name in left)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_two_processes_equal_update_freq_2(architecture, copy_data, tmp_path):
    command = ("fairseq-train", copy_data, "--user-dir", USER_DIR, *ARCHITECTURES[architecture])
    one = run(*command, *RUN, "--update-freq", 2, "--save-dir", tmp_path / "one").stdout
    two = torchrun(*command, *RUN, "--save-dir", tmp_path / "two").stdout
    assert len(losses(one)) == 4
    assert losses(two) == pytest.approx(losses(one), abs=1e-3)  # the log has three digits
    single, double = load(tmp_path / "one" / LAST), load(tmp_path / "two" / LAST)
    assert double["extra_state"]["val_loss"] == pytest.approx(
        single["extra_state"]["val_loss"], abs=1e-4
    )
    assert difference(single["model"], double["model"]) < 1e-4
    assert (
        double["optimizer_history"][-1]["num_updates"]
        == single["optimizer_history"][-1]["num_updates"]
    )
