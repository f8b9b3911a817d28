"""Epsilon sampling against exact truncated distributions, and through the real fairseq-generate."""

import math
from pathlib import Path

import pytest
import torch
from sacrebleu import sentence_chrf
from scipy.stats import chisquare
from torch import Tensor

from fairseq_ext.decoding import mbr
from fairseq_ext.evaluation.outputs import read_generated
from fairseq_ext.generation.generators import EpsilonSampling, truncate
from fairseq_ext.generation.option_checks import check_sampling
from fairseq_ext.text.generated import Undoing
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import fairseq, run
from tests.support.models import dictionary

EPSILON = 0.05  # less than 1 / 14, so that of the digits' 14 symbols one is always above it


def naive(probabilities: list[float], epsilon: float) -> list[float]:
    """Hewitt et al.: what is below ε has no probability, the rest is normalized."""
    truncated = [p if p >= epsilon or p == max(probabilities) else 0.0 for p in probabilities]
    return [p / sum(truncated) for p in truncated]


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.1, 0.5, 0.9])
def test_truncation_against_lists(epsilon: float) -> None:
    torch.manual_seed(0)
    rows = torch.randn(7, 3, 19, dtype=torch.float64).mul(2).log_softmax(-1)
    before = rows.clone()
    truncated = truncate(rows, epsilon).softmax(-1)
    assert rows.equal(before)
    for row, expected in zip(truncated.view(-1, 19).tolist(), rows.view(-1, 19).exp(), strict=True):
        assert row == pytest.approx(naive(expected.tolist(), epsilon), abs=1e-12)


def test_threshold_itself_is_kept_and_equal_tops_too() -> None:
    log = torch.tensor([0.5, 0.25, 0.25 - 1e-9, 0.0], dtype=torch.float64).log()
    assert truncate(log, 0.25).isfinite().tolist() == [True, True, False, False]
    uniform = torch.full((4,), 0.25).log()
    assert truncate(uniform, 0.9).isfinite().all()
    forced = torch.tensor([-math.inf, -20.0, -math.inf])  # as at --max-len-b, </s> alone is left
    assert truncate(forced, 0.5).equal(forced)


def search(epsilon: float, size: int) -> EpsilonSampling:
    return EpsilonSampling(dictionary(size), epsilon)


def drawn(probabilities: Tensor, epsilon: float, count: int, step: int) -> tuple[Tensor, Tensor]:
    """(scores, tokens) of ``count`` hypotheses with the same distribution of the next token."""
    torch.manual_seed(6)
    rows = probabilities.log().expand(1, count, -1).contiguous()
    former = torch.full((1, count, step), -2.0)
    scores, tokens, beams = search(epsilon, len(probabilities)).step(step, rows, former, None, None)
    expected = torch.zeros(1, count, dtype=torch.long) if step == 0 else torch.arange(count)[None]
    assert beams.equal(expected)
    return scores[0], tokens[0]


@pytest.mark.parametrize("step", [0, 3])
def test_draws_follow_the_truncated_distribution(step: int) -> None:
    torch.manual_seed(1)
    count = 40_000
    probabilities = torch.randn(25).mul(1.3).softmax(-1)
    scores, tokens = drawn(probabilities, EPSILON, count, step)
    expected = torch.tensor(naive(probabilities.tolist(), EPSILON))
    possible = expected > 0
    assert 3 < possible.sum() < 25
    counts = torch.bincount(tokens, minlength=25)
    assert counts[~possible].sum() == 0
    p = chisquare(
        counts[possible].numpy(), (expected[possible] / expected.sum() * count).numpy()
    ).pvalue
    assert p > 0.01
    # The model's probability, as with fairseq's own sampling, added to what was there before.
    model = probabilities.log()[tokens] + (-2.0 if step else 0.0)
    assert scores.tolist() == pytest.approx(model.tolist(), abs=1e-5)


def test_sentences_are_truncated_each_for_itself() -> None:
    rows = torch.tensor([[[0.90, 0.06, 0.04]], [[0.34, 0.33, 0.33]]]).log()
    torch.manual_seed(2)
    _, tokens, _ = search(0.1, 5).step(0, rows.expand(2, 500, 3).contiguous(), None)
    assert set(tokens[0].tolist()) == {0}
    assert set(tokens[1].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("epsilon", "options", "message"),
    [
        (-0.1, {}, "must be at least 0 and less than 1, but is -0.1 instead"),
        (1.0, {}, "must be at least 0 and less than 1, but is 1.0 instead"),
        (0.1, {"sampling": False}, "needs `--sampling`"),
        (0.1, {"top_k": 5}, "does not go with `--sampling-topk`"),
        (0.1, {"top_p": 0.9}, "does not go with `--sampling-topp`"),
    ],
)
def test_options_that_cannot_work(epsilon: float, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_sampling(epsilon, **{"sampling": True, "top_k": -1, "top_p": -1.0, **options})


def generate(data: Path, checkpoint: Path, *flags: object):
    return fairseq(
        *("generate", data, "--path", checkpoint, "--sampling", "--beam", 6, "--nbest", 6),
        *("--engine", "fairseq"),
        *("--batch-size", 50, "--no-progress-bar", *flags),
    )


@pytest.fixture(scope="module")
def samples(copy_data: Path, unsure_model: Path) -> list[Path]:
    """Six samples of each test sentence in a file: from two seeds, and without truncation."""
    epsilon = ("--task", "translation_ext", "--epsilon-sampling", EPSILON)
    files = []
    for number, flags in enumerate((epsilon, epsilon, ("--task", "translation")), start=1):
        files.append(unsure_model.with_name(f"samples.{number}"))
        output = generate(copy_data, unsure_model, *flags, "--seed", number).stdout
        files[-1].write_text(output, encoding="utf-8")
    return files


def test_generate_draws_no_token_below_the_threshold(samples: list[Path]) -> None:
    limit = math.log2(EPSILON) - 1e-3
    rare = []
    for path in samples:
        sentences = read_generated(path, expected=50)
        assert {len(sentence.hypotheses) for sentence in sentences} == {6}
        scores = [s for sentence in sentences for h in sentence.hypotheses for s in h.token_scores]
        rare.append(sum(score < limit for score in scores))
    assert rare[:2] == [0, 0]
    assert rare[2] > 50


def test_samples_end_as_one_translation_each(copy_data, samples, tmp_path) -> None:
    """Two files of six, four of the twelve drawn; sentences come in corpus order."""
    files, out = samples[:2], tmp_path / "best"
    run("fairseq-ext", "mbr", *files, "--num-candidates", 4, "--candidates-of", 12, "-o", out)
    source = (copy_data.parent / "text" / "test.src").read_text().split("\n")[:-1]
    candidates = mbr.read_candidates(files, 12, Undoing.by_language(None), reads_source=True)
    assert [candidate.source for candidate in candidates] == source
    best = out.read_text().split("\n")[:-1]
    assert len(best) == len(source)
    for translation, text in zip(candidates, best, strict=True):
        drawn = [translation.texts[place] for place in mbr.random_subset(translation, 4, seed=1)]
        means = {h: sum(sentence_chrf(h, [y]).score for y in drawn) for h in drawn}
        assert means[text] == pytest.approx(max(means.values()), abs=1e-9)
