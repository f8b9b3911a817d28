"""GNMT's length penalty and epsilon sampling, exactly and through the real fairseq-generate."""

import math
from argparse import Namespace
from itertools import product
from pathlib import Path

import pytest
import torch
from fairseq.models import FairseqDecoder, FairseqEncoder, FairseqEncoderDecoderModel
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationTask
from sacrebleu import sentence_chrf
from scipy.stats import chisquare
from torch import Tensor

from fairseq_ext.decoding import mbr
from fairseq_ext.evaluation.outputs import Sentence, read_generated
from fairseq_ext.generation.generators import EpsilonSampling, truncate, with_gnmt_scores
from fairseq_ext.generation.option_checks import check_gnmt_lenpen, check_sampling
from fairseq_ext.generation.translation_ext import TranslationExtConfig, TranslationExtTask
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import command, fairseq
from tests.support.models import dictionary

EOS, WORDS, LONGEST, SIZE = 2, (4, 5, 6), 3, 64


class NoEncoder(FairseqEncoder):
    def forward_torchscript(self, net_input: dict) -> dict:
        return {"size": net_input["src_tokens"].shape}

    def reorder_encoder_out(self, out: dict, order: Tensor) -> dict:
        return out


class TableDecoder(FairseqDecoder):
    """The next token depends on the position and the last token; all but a few are impossible."""

    def __init__(self, words, table: Tensor) -> None:
        super().__init__(words)
        self.table = table  # [positions, V, V], logarithms

    def forward(self, previous: Tensor, **unused: object) -> tuple[Tensor, dict]:
        positions = torch.arange(previous.size(1))
        return self.table[positions, previous], {"attn": [None]}

    def max_positions(self) -> int:
        return 50


def table(seed: int) -> Tensor:
    torch.manual_seed(seed)
    allowed = torch.full((SIZE,), -math.inf)
    allowed[[EOS, *WORDS]] = 0
    return (torch.randn(LONGEST + 1, SIZE, SIZE) + allowed).log_softmax(-1)


def everything(logs: Tensor) -> dict[tuple[int, ...], float]:
    """log P of every hypothesis of one to three words, with its </s>."""
    sequences = {}
    for length in range(1, LONGEST + 1):
        for words in product(WORDS, repeat=length):
            tokens = (*words, EOS)
            steps = zip((EOS, *words), tokens, strict=True)
            total = sum(float(logs[t, a, b]) for t, (a, b) in enumerate(steps))
            if length == LONGEST:  # what is left at --max-len-b is </s>, at its own probability
                assert tokens[-1] == EOS
            sequences[tokens] = total
    return sequences


def search(seed: int, **options: object) -> list[dict]:
    """All that a beam wide enough for every hypothesis finds, best first."""
    words = dictionary(SIZE)
    model = FairseqEncoderDecoderModel(NoEncoder(words), TableDecoder(words, table(seed)))
    generator = SequenceGenerator(
        [model], words, beam_size=SIZE - 1, max_len_a=0, max_len_b=LONGEST, **options
    )
    source = torch.tensor([[4, 5, EOS]])
    net_input = {"src_tokens": source, "src_lengths": torch.tensor([3])}
    return generator.forward({"net_input": net_input})[0]


@pytest.mark.parametrize("alpha", [0.2, 0.6, 1.0, 2.0])
def test_exhaustive_search_finds_the_same_order_and_scores(alpha: float) -> None:
    for seed in range(5):
        truth = everything(table(seed))
        scores = {y: log / ((5 + len(y)) / 6) ** alpha for y, log in truth.items()}
        (hypotheses_of_search,) = with_gnmt_scores([search(seed)], alpha)
        assert [tuple(h["tokens"].tolist()) for h in hypotheses_of_search] == sorted(
            scores, key=scores.get, reverse=True
        )
        for hypothesis in hypotheses_of_search:
            tokens = tuple(hypothesis["tokens"].tolist())
            assert float(hypothesis["score"]) == pytest.approx(scores[tokens], rel=1e-5)
            log = float(hypothesis["positional_scores"].sum())
            assert log == pytest.approx(truth[tokens], rel=1e-5)


@pytest.mark.parametrize(
    ("check", "value", "options", "message"),
    [
        (check_gnmt_lenpen, -0.1, {}, "must be a number from 0 to 100, but is -0.1 instead"),
        (check_gnmt_lenpen, math.nan, {}, "must be a number from 0 to 100, but is nan instead"),
        (check_gnmt_lenpen, math.inf, {}, "must be a number from 0 to 100, but is inf instead"),
        (check_gnmt_lenpen, 0.6, {"lenpen": 0.6}, "does not go with `--lenpen`"),
        (check_gnmt_lenpen, 0.6, {"unnormalized": True}, "does not go with `--unnormalized`"),
        (check_gnmt_lenpen, 0.6, {"score_reference": True}, "does not go with `--score-reference`"),
        (check_sampling, -0.1, {}, "must be at least 0 and less than 1, but is -0.1 instead"),
        (check_sampling, 1.0, {}, "must be at least 0 and less than 1, but is 1.0 instead"),
        (check_sampling, 0.1, {"sampling": False}, "needs `--sampling`"),
        (check_sampling, 0.1, {"sampling_topk": 5}, "does not go with `--sampling-topk`"),
        (check_sampling, 0.1, {"sampling_topp": 0.9}, "does not go with `--sampling-topp`"),
    ],
)
def test_options_that_cannot_work(check, value: float, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(value, Namespace(**{"sampling": True, **options}))


def test_0_leaves_everything_to_fairseq() -> None:
    check_gnmt_lenpen(0.0, Namespace(lenpen=0.6, unnormalized=True, score_reference=True))
    words = dictionary(SIZE)
    model = FairseqEncoderDecoderModel(NoEncoder(words), TableDecoder(words, table(0)))
    generation = Namespace(lenpen=0.6, beam=3)
    task = TranslationExtTask(TranslationExtConfig(data="x"), words, words)
    stock = TranslationTask(task.cfg, words, words).build_generator([model], generation)
    ours = task.build_generator([model], generation)
    assert type(ours) is type(stock) is SequenceGenerator
    assert (ours.len_penalty, ours.normalize_scores) == (0.6, True)


def generate(data: Path, checkpoint: Path, name: str, *flags: object) -> Path:
    """Write what fairseq's own generator prints into a file beside the checkpoint."""
    options = ("--engine", "fairseq", "--batch-size", 50, "--no-progress-bar")
    done = fairseq("generate", data, "--path", checkpoint, *options, *flags)
    path = checkpoint.with_name(name)
    path.write_text(done.stdout, encoding="utf-8")
    return path


def generated(data: Path, checkpoint: Path, *flags: object) -> list[Sentence]:
    search = ("--task", "translation_ext", "--beam", 4, "--nbest", 4, "--max-len-b", 20)
    return read_generated(generate(data, checkpoint, "generated.txt", *search, *flags), expected=50)


def score_of(token_scores: list[float], alpha: float) -> float:
    return sum(token_scores) / ((5 + len(token_scores)) / 6) ** alpha


def test_the_penalty_ranks_what_fairseqs_beam_finds(copy_data, unsure_model) -> None:
    """What is found does not depend on the penalty; printed scores are those of the tokens."""
    stock, lengths = generated(copy_data, unsure_model), set()
    for alpha, flags in ((0.6, ()), (2.5, ("--print-alignment", "hard"))):
        ours = generated(copy_data, unsure_model, "--gnmt-lenpen", alpha, *flags)
        for plain, sentence in zip(stock, ours, strict=True):
            texts = ([h.text for h in found.hypotheses] for found in (plain, sentence))
            assert len({*map(tuple, map(sorted, texts))}) == 1
            scores = [hypothesis.score for hypothesis in sentence.hypotheses]
            assert scores == sorted(scores, reverse=True)
            truths, of_stock = (
                [score_of(hypothesis.token_scores, alpha) for hypothesis in found.hypotheses]
                for found in (sentence, plain)
            )
            assert scores == pytest.approx(truths, abs=2e-3)
            assert scores[0] == pytest.approx(max(of_stock), abs=2e-3)
            lengths |= {len(hypothesis.token_scores) for hypothesis in sentence.hypotheses}
    assert len(lengths) > 3


# Epsilon sampling against exact truncated distributions, and through the real fairseq-generate
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


@pytest.mark.parametrize("step", [0, 3])
def test_draws_follow_the_truncated_distribution(step: int) -> None:
    """Hypotheses of one sentence, all with the same distribution of the next token."""
    torch.manual_seed(1)
    count = 40_000
    probabilities = torch.randn(25).mul(1.3).softmax(-1)
    rows = probabilities.log().expand(1, count, -1).contiguous()
    former = torch.full((1, count, step), -2.0)
    search = EpsilonSampling(dictionary(25), EPSILON)
    (scores,), (tokens,), (beams,) = search.step(step, rows, former, None, None)
    assert beams.equal(torch.arange(count) if step else torch.zeros(count, dtype=torch.long))
    expected = torch.tensor(naive(probabilities.tolist(), EPSILON))
    possible = expected > 0
    assert 3 < possible.sum() < 25
    counts = torch.bincount(tokens, minlength=25)
    assert counts[~possible].sum() == 0
    shares = expected[possible] / expected.sum()
    assert chisquare(counts[possible].numpy(), (shares * count).numpy()).pvalue > 0.01
    # The model's probability, as with fairseq's own sampling, added to what was there before.
    model = probabilities.log()[tokens] + (-2.0 if step else 0.0)
    assert scores.tolist() == pytest.approx(model.tolist(), abs=1e-5)


@pytest.fixture(scope="module")
def samples(copy_data: Path, unsure_model: Path) -> list[Path]:
    """Six samples of each test sentence in a file: from two seeds, and without truncation."""
    epsilon = ("--task", "translation_ext", "--epsilon-sampling", EPSILON)
    search = ("--sampling", "--beam", 6, "--nbest", 6)
    return [
        generate(copy_data, unsure_model, f"samples.{number}", *search, *flags, "--seed", number)
        for number, flags in enumerate((epsilon, epsilon, ("--task", "translation")), start=1)
    ]


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
    command("mbr", *files, "--num-candidates", 4, "--candidates-of", 12, "-o", out)
    source = (copy_data.parent / "text" / "test.src").read_text().split("\n")[:-1]
    candidates = mbr.read_candidates(files, 12, Postprocessor.by_language(None), reads_source=True)
    assert [candidate.source for candidate in candidates] == source
    best = out.read_text().split("\n")[:-1]
    assert len(best) == len(source)
    for translation, text in zip(candidates, best, strict=True):
        drawn = [translation.texts[place] for place in mbr.random_subset(translation, 4, seed=1)]
        means = {h: sum(sentence_chrf(h, [y]).score for y in drawn) for h in drawn}
        assert means[text] == pytest.approx(max(means.values()), abs=1e-9)
