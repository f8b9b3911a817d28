"""GNMT's length penalty against an exhaustive search, and through the real fairseq-generate."""

import math
from argparse import Namespace
from itertools import product
from pathlib import Path

import pytest
import torch
from fairseq.models import FairseqDecoder, FairseqEncoder, FairseqEncoderDecoderModel
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_ext.evaluation.outputs import Sentence, read_generated
from fairseq_ext.generation.generators import penalty, with_gnmt_scores
from fairseq_ext.generation.option_checks import check_gnmt_lenpen
from fairseq_ext.generation.translation_ext import TranslationExtConfig, TranslationExtTask
from fairseq_ext.utils.errors import ConfigError
from tests.commands.test_bad_input import refused
from tests.support.harness import fairseq
from tests.support.models import dictionary

EOS, WORDS, LONGEST, SIZE = 2, (4, 5, 6), 3, 64


def test_penalty_is_the_papers_formula() -> None:
    assert penalty(1, 0.6) == 1
    assert penalty(7, 1.0) == 2
    assert penalty(31, 0.5) == pytest.approx(math.sqrt(6))
    assert penalty(9, 0.0) == 1


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


def test_it_is_not_fairseqs_penalty() -> None:
    """With the same exponent other translations win, so one does not stand for the other."""
    differ = 0
    for seed in range(30):
        ours = with_gnmt_scores([search(seed)], 0.6)[0][0]
        theirs = search(seed, len_penalty=0.6)[0]
        differ += ours["tokens"].tolist() != theirs["tokens"].tolist()
    assert differ > 0


@pytest.mark.parametrize(
    ("alpha", "options", "message"),
    [
        (-0.1, {}, "must be a number from 0 to 100, but is -0.1 instead"),
        (math.nan, {}, "must be a number from 0 to 100, but is nan instead"),
        (math.inf, {}, "must be a number from 0 to 100, but is inf instead"),
        (0.6, {"lenpen": 0.6}, "does not go with `--lenpen`"),
        (0.6, {"unnormalized": True}, "does not go with `--unnormalized`"),
        (0.6, {"score_reference": True}, "does not go with `--score-reference`"),
    ],
)
def test_options_that_cannot_work(alpha: float, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_gnmt_lenpen(alpha, Namespace(**options))


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


def generated(data: Path, checkpoint: Path, *flags: object) -> list[Sentence]:
    done = fairseq(
        *("generate", data, "--path", checkpoint, "--task", "translation_ext"),
        *("--beam", 4, "--nbest", 4, "--batch-size", 50, "--max-len-b", 20, "--no-progress-bar"),
        *("--engine", "fairseq"),
        *flags,
    )
    path = checkpoint.with_name("generated.txt")
    path.write_text(done.stdout, encoding="utf-8")
    return read_generated(path, expected=50)


def score_of(token_scores: list[float], alpha: float) -> float:
    return sum(token_scores) / ((5 + len(token_scores)) / 6) ** alpha


def test_printed_scores_are_those_of_the_printed_tokens(copy_data, unsure_model) -> None:
    lengths = set()
    for flags in ((), ("--print-alignment", "hard")):
        for sentence in generated(copy_data, unsure_model, "--gnmt-lenpen", 0.6, *flags):
            scores = [hypothesis.score for hypothesis in sentence.hypotheses]
            assert scores == sorted(scores, reverse=True)
            for hypothesis in sentence.hypotheses:
                truth = score_of(hypothesis.token_scores, 0.6)
                assert hypothesis.score == pytest.approx(truth, abs=2e-3)
                lengths.add(len(hypothesis.token_scores))
    assert len(lengths) > 3


def test_the_beam_is_fairseqs_and_only_the_order_another(copy_data, unsure_model) -> None:
    """What is found does not depend on the penalty, so ours re-ranks the stock task's list."""
    stock = generated(copy_data, unsure_model)
    for plain, ours in zip(
        stock, generated(copy_data, unsure_model, "--gnmt-lenpen", 2.5), strict=True
    ):
        truth = sorted(plain.hypotheses, key=lambda h: -score_of(h.token_scores, 2.5))
        assert sorted(h.text for h in ours.hypotheses) == sorted(h.text for h in truth)
        assert ours.best.score == pytest.approx(score_of(truth[0].token_scores, 2.5), abs=2e-3)


def test_generate_says_what_is_wrong_in_one_line(copy_data, unsure_model) -> None:
    done = fairseq(
        *("generate", copy_data, "--path", unsure_model, "--task", "translation_ext"),
        *("--gnmt-lenpen", 0.6, "--lenpen", 0.6),
        ok=False,
    )
    refused(done, "`--gnmt-lenpen` does not go with `--lenpen`")
