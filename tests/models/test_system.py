"""Every architecture learns a task through the real commands, from text to BLEU.

Copying digits needs an attention that follows the source; sorting them needs one that finds.
"""

import re
from pathlib import Path

import pytest

from tests.support.harness import binarize, digits_corpus, fairseq, hypotheses

pytestmark = [pytest.mark.system, pytest.mark.slow]

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
