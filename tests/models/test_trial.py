"""Each architecture through the commands: preprocess, train, resume, validate, generate.

Run it first with another fairseq or Python.
"""

import re
from pathlib import Path

import pytest

from tests.support.harness import fairseq, hypotheses
from tests.support.trainings import ARCHITECTURES, TRAINING

BMT = {"bmt_tiny": ("--arch", "bmt_tiny", "--encoder-layers", 1, "--decoder-layers", 1)}


@pytest.mark.system
@pytest.mark.parametrize(("arch", "flags"), {**ARCHITECTURES, **BMT}.items())
def test_trial(arch: str, flags: tuple[object, ...], copy_data: Path, tmp_path: Path) -> None:
    """A loaded model has the very loss that it had in training, so nothing else computes."""
    last = tmp_path / "checkpoint_last.pt"
    for updates in (4, 8):
        options = (*flags, *TRAINING, "--max-update", updates, "--save-dir", tmp_path)
        log = fairseq("train", copy_data, *options).stdout
    assert f"Loaded checkpoint {last}" in log
    in_training = re.findall(r"valid on 'valid' subset \| loss ([\d.]+) .* num_updates 8\b", log)[
        -1
    ]

    options = ("--task", "translation", "--max-tokens", 400, "--path", last, "--cpu")
    output = fairseq("validate", copy_data, *options).stdout
    assert re.search(r"valid on 'valid' subset \| loss ([\d.]+)", output)[1] == in_training
    assert len(hypotheses(fairseq("generate", copy_data, "--path", last, "--cpu").stdout)) == 50
