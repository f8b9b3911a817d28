"""Every architecture through the real commands: learning a task; training, validating, generating.

Copying digits needs an attention that follows the source; sorting them needs one that finds.
"""

import re
from pathlib import Path

import pytest

from tests.support.harness import binarize, digits_corpus, fairseq, hypotheses
from tests.support.trainings import ARCHITECTURES, TRAINING

# A new architecture is one line here; flags of its own win over the common ones.
SYSTEMS: dict[str, tuple[object, ...]] = {
    "gru": ("--arch", "gru_tiny", "--lr", 1e-2),
    "linformer": (
        *("--arch", "linformer_tiny", "--encoder-layers", 2, "--decoder-layers", 2),
        *("--linformer-k", 16, "--linformer-max-len", 32, "--lr", 2e-3),
    ),
    "muse": ("--arch", "muse_tiny", "--encoder-layers", 2, "--decoder-layers", 2, "--lr", 2e-3),
}
TASKS = {"copy": list, "sort": sorted}
UPDATES, ENOUGH = 200, 98.0
"""Updates in which a task is learnt, and the BLEU to reach."""

TEST_LINES = 200


def bleu(generated: str) -> float:
    return float(re.findall(r"BLEU4 = ([\d.]+)", generated)[-1])


@pytest.mark.parametrize(
    ("system", "task"), [("gru", "sort"), ("linformer", "sort"), ("muse", "copy")]
)
def test_learns(system: str, task: str, tmp_path: Path) -> None:
    sizes = {"train": 4000, "valid": 50, "test": TEST_LINES, "max_len": 5}
    data = binarize(digits_corpus(tmp_path / "text", TASKS[task], **sizes), tmp_path / "bin")
    fairseq(
        *("train", data, "--save-dir", tmp_path / "model", "--cpu", "--max-update", UPDATES),
        *("--optimizer", "adam", "--clip-norm", 1, "--max-tokens", 600, "--dropout", 0),
        # Down to 0, or the last updates' noise, another on each kind of processor, costs some BLEU.
        *("--lr-scheduler", "polynomial_decay", "--warmup-updates", 50),
        *("--total-num-update", UPDATES),
        *("--no-save-optimizer-state", "--no-epoch-checkpoints", "--num-workers", 0),
        *SYSTEMS[system],
    )

    def generate(*flags: object) -> str:
        model = tmp_path / "model" / "checkpoint_last.pt"
        return fairseq("generate", data, "--path", model, "--cpu", *flags).stdout

    for output in (generate("--engine", "fairseq"), generate("--beam", 1)):
        assert bleu(output) >= ENOUGH
        assert len(hypotheses(output)) == TEST_LINES


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_trial(arch: str, copy_data: Path, tmp_path: Path) -> None:
    """A loaded model has the very loss that it had in training, so nothing else computes.

    BMT, whose stages change that loss, has tests of its own, and so has resuming.
    """
    last = tmp_path / "checkpoint_last.pt"
    options = (*ARCHITECTURES[arch], *TRAINING, "--max-update", 4, "--save-dir", tmp_path)
    log = fairseq("train", copy_data, *options).stdout
    (loss,) = re.findall(r"valid on 'valid' subset \| loss ([\d.]+) .* num_updates 4\b", log)

    options = ("--task", "translation", "--max-tokens", 400, "--path", last, "--cpu")
    output = fairseq("validate", copy_data, *options).stdout
    assert re.search(r"valid on 'valid' subset \| loss ([\d.]+)", output)[1] == loss
    assert len(hypotheses(fairseq("generate", copy_data, "--path", last, "--cpu").stdout)) == 50
