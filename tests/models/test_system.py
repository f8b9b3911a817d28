"""Every architecture learns a task through the real commands, from text to BLEU.

Copying digits needs an attention that follows the source; sorting them needs one that finds. A
whole run learns one of them with each architecture, and with ``--long`` the other one too.
"""

from __future__ import annotations

import itertools
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
QUICKEST = {("gru", "sort"), ("linformer", "sort"), ("muse", "copy")}
TASKS = {"copy": (list, 600, 98.0), "sort": (sorted, 600, 98.0)}
"""What becomes of a sentence, the updates to learn it in, and the BLEU to reach."""

TEST_LINES = 200


def bleu(generated: str) -> float:
    return float(re.findall(r"BLEU4 = ([\d.]+)", generated)[-1])


@pytest.mark.parametrize(
    ("system", "task"),
    [
        pytest.param(*pair, marks=() if pair in QUICKEST else pytest.mark.long)
        for pair in itertools.product(SYSTEMS, TASKS)
    ],
)
def test_learns(system: str, task: str, tmp_path: Path) -> None:
    transform, updates, enough = TASKS[task]
    text = digits_corpus(tmp_path / "text", transform, train=4000, valid=50, test=TEST_LINES)
    data = binarize(text, tmp_path / "bin")
    fairseq(
        *("train", data, "--save-dir", tmp_path / "model", "--cpu", "--max-update", updates),
        *("--optimizer", "adam", "--clip-norm", 1, "--max-tokens", 600, "--dropout", 0),
        # Down to 0, or the last updates' noise, another on each kind of processor, costs some BLEU.
        *("--lr-scheduler", "polynomial_decay", "--warmup-updates", 100),
        *("--total-num-update", updates),
        *("--no-save-optimizer-state", "--no-epoch-checkpoints", "--num-workers", 0),
        *SYSTEMS[system],
    )

    def generate(*flags: object) -> str:
        model = tmp_path / "model" / "checkpoint_last.pt"
        return fairseq("generate", data, "--path", model, "--cpu", *flags).stdout

    small, large = (generate("--max-tokens", n, "--engine", "fairseq") for n in (40, 4000))
    greedy = generate("--beam", 1)
    assert bleu(large) >= enough
    assert bleu(greedy) >= enough
    assert len(hypotheses(large)) == TEST_LINES
    assert hypotheses(small) == hypotheses(large)
