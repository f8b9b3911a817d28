"""The engine translates as fairseq's generator does, whatever the architecture and options."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from fairseq.models import BaseFairseqModel
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.library import Machine, Team, available_paths
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support import models

STOCK = {
    "transformer": ["--arch", "transformer", *models.SMALL],
    "transformer-pre-norm": [
        *("--arch", "transformer", *models.SMALL, "--encoder-normalize-before"),
        *("--decoder-normalize-before", "--share-all-embeddings", "--activation-fn", "gelu"),
    ],
    "transformer-learned": [
        *("--arch", "transformer", *models.SMALL, "--encoder-learned-pos", "--decoder-learned-pos"),
        *("--layernorm-embedding", "--no-scale-embedding"),
    ],
    "transformer-gelu-accurate": [
        *("--arch", "transformer", *models.SMALL, "--activation-fn", "gelu_accurate"),
    ],
    "transformer-no-positions": [
        *("--arch", "transformer", *models.SMALL, "--no-token-positional-embeddings"),
    ],
}
KERNELS = ("--encoder-kernel-size-list", "[3, 7]", "--decoder-kernel-size-list", "[7, 3]")
LIGHTCONV = ["--arch", "lightconv", *models.SMALL, *KERNELS]
LIGHT = ["--encoder-conv-type", "lightweight", "--decoder-conv-type", "lightweight"]
LSTM = ["--arch", "lstm", "--encoder-embed-dim", "16", "--decoder-embed-dim", "12"]
STOCK |= {
    "lightconv": [*LIGHTCONV, *LIGHT],
    "lightconv-raw-kernels": [*LIGHTCONV, *LIGHT, "--weight-softmax", "False"],
    "lightconv-pre-norm": [
        *(*LIGHTCONV, *LIGHT, "--encoder-normalize-before", "--decoder-normalize-before"),
        *("--encoder-glu", "False", "--decoder-glu", "False", "--decoder-conv-dim", "32"),
    ],
    "dynamicconv": LIGHTCONV,
    "dynamicconv-mixed": [*LIGHTCONV, *LIGHT[:2], "--encoder-glu", "False"],
    "lstm": [*LSTM, "--encoder-hidden-size", "16", "--decoder-hidden-size", "16"],
    "lstm-bidirectional": [
        *(*LSTM, "--encoder-bidirectional", "--encoder-layers", "2", "--decoder-layers", "2"),
        *("--encoder-hidden-size", "9", "--decoder-hidden-size", "14"),
    ],
    "lstm-tied": [
        *(*LSTM, "--decoder-hidden-size", "20", "--encoder-bidirectional"),
        *("--share-decoder-input-output-embed", "--decoder-out-embed-dim", "12"),
    ],
    "lstm-no-attention": [*LSTM, "--encoder-hidden-size", "20", "--decoder-attention", "False"],
}
ALL = {**STOCK, **models.ARCHITECTURES}
LENGTHS = [9, 3, 1, 17, 6, 12, 2]


def sharpened(name: str, seed: int = 0) -> tuple[BaseFairseqModel, object]:
    """A model whose random weights are large enough for its words to differ."""
    model, task = models.build(ALL[name], size=40, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6 if name.startswith("lstm") else 1.5)  # fairseq's are below 0.1
    return model, task


TIE = 1e-5
"""Candidates whose scores are nearer than this may change places: sums are rounded differently."""


class Watching(BeamSearch):
    """fairseq's search; it remembers how near the best candidates came to each other."""

    nearest = math.inf

    def step(self, step: int, lprobs: Tensor, scores: Tensor, *extra: object) -> tuple:
        totals = lprobs[:, :1] if step == 0 else lprobs + scores[:, :, step - 1 : step]
        totals = totals.flatten().sort(descending=True).values[: 2 * lprobs.size(1) + 1]
        gaps = -totals.diff()
        self.nearest = min([self.nearest, *gaps[gaps.isfinite()].tolist()])
        return super().step(step, lprobs, scores, *extra)


def fairseqs(
    model: BaseFairseqModel | list[BaseFairseqModel],
    task: object,
    sentences: list[list[int]],
    prefixes: list[list[int]] | None = None,
    **how: object,
) -> list[list[dict] | None]:
    """What fairseq's generator finds, a sentence at a time; None where candidates were tied."""
    hypotheses_of_sentences, voters = [], model if isinstance(model, list) else [model]
    for number, sentence in enumerate(sentences):
        search = Watching(task.target_dictionary)
        generator = SequenceGenerator(voters, task.target_dictionary, search_strategy=search, **how)
        tokens = torch.tensor([sentence])
        net_input = {"src_tokens": tokens, "src_lengths": torch.tensor([len(sentence)])}
        prefix = None if prefixes is None else torch.tensor([prefixes[number]])
        sample = {"id": torch.tensor([0]), "net_input": net_input}
        (hypotheses,) = generator.generate(voters, sample, prefix_tokens=prefix)
        finals = torch.stack([hypothesis["score"] for hypothesis in hypotheses])
        nearest = min([search.nearest, *(-finals.diff()).tolist()])
        hypotheses_of_sentences.append(hypotheses if nearest > TIE else None)
    assert (
        sum(hypotheses is not None for hypotheses in hypotheses_of_sentences)
        > len(hypotheses_of_sentences) / 2
    )
    return hypotheses_of_sentences


def assert_same(ours: list, theirs: list, attention: bool = False) -> None:
    for our_hypotheses, their_hypotheses in zip(ours, theirs, strict=True):
        if their_hypotheses is None:
            continue
        assert len(our_hypotheses) == len(their_hypotheses)
        for our, their in zip(our_hypotheses, their_hypotheses, strict=True):
            assert our.tokens.tolist() == their["tokens"].tolist()
            assert our.score == pytest.approx(float(their["score"]), abs=1e-4)
            np.testing.assert_allclose(our.scores, their["positional_scores"], atol=1e-4)
            if attention and not their["attention"].numel():
                assert our.attention is None
            elif attention:
                np.testing.assert_allclose(our.attention, their["attention"].t(), atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_beam_search(name: str):
    """All hypotheses, of sentences together in a batch, with scores and alignments."""
    model, task = sharpened(name)
    sentences = models.random_sentences(LENGTHS, size=40)
    worker = Machine(compile_model(model, task.target_dictionary)).worker()
    ours = worker.translate(sentences, Rules(beam=4, max_len_b=25, attention=True))
    theirs = fairseqs(model, task, sentences, beam_size=4, max_len_b=25)
    assert_same(ours, theirs, attention=True)


WIDE = [flag for side in ("encoder", "decoder") for flag in (f"--{side}-embed-dim", "144")]
"""Two heads of 72: more than is copied at a time, and not a multiple of any vector."""
LONG = {
    "transformer": [*STOCK["transformer"], *WIDE],
    "linformer": [*models.LINFORMER, *WIDE, "--linformer-k", "33", "--linformer-max-len", "301"],
}


@pytest.mark.parametrize("path", available_paths())
@pytest.mark.parametrize("name", LONG)
def test_long_sources(name: str, path: str):
    """Of several chunks of keys and values, and beams wider than what is answered at once."""
    model, task = models.build(LONG[name], size=40)
    sentences = models.random_sentences([300, 128, 129], size=40)
    worker = Machine(compile_model(model, task.target_dictionary), path=path).worker()
    ours = worker.translate(sentences, Rules(beam=7, max_len_b=4, attention=True))
    theirs = fairseqs(model, task, sentences, beam_size=7, max_len_b=4)
    assert_same(ours, theirs, attention=True)


def naive(model: BaseFairseqModel, sentence: list[int], beam: int, longest: int) -> list | None:
    """Beam search without caches, batches or padding: scores and tokens, best first.

    None where candidates were tied.
    """
    source, lengths = torch.tensor([sentence]), torch.tensor([len(sentence)])
    going, ended = [(0.0, [2])], []
    for step in range(longest + 1):
        candidates = []
        for total, tokens in going:
            with torch.no_grad():
                logits = model(source, lengths, torch.tensor([tokens]))[0][0, -1]
            scores = torch.log_softmax(logits.float(), 0).tolist()
            allowed = {2} if step == longest else set(range(len(scores))) - {1}  # no pads
            if step == 0:
                allowed -= {2}  # at least one word
            candidates += [(total + scores[token], [*tokens, token]) for token in allowed]
        best = sorted(candidates, reverse=True)[: 2 * beam + 1]
        if any(candidate[0] - next_[0] < TIE for candidate, next_ in itertools.pairwise(best)):
            return None
        best = best[: 2 * beam]
        ended += [
            (total / (step + 1), tokens[1:]) for total, tokens in best[:beam] if tokens[-1] == 2
        ]
        going = [candidate for candidate in best if candidate[1][-1] != 2][:beam]
        if len(ended) >= beam:
            break
    return sorted(ended[:beam], reverse=True)


WITH_FULL_FORWARD = [name for name in ALL if not name.startswith("dynamicconv")]
"""Without DynamicConv, whose full forward gives shorter sentences another softmax of a kernel."""


@pytest.mark.parametrize("name", WITH_FULL_FORWARD)
def test_against_a_search_without_caches(name: str):
    model, task = sharpened(name)
    sentences = models.random_sentences([7, 2, 4], size=40, seed=8)
    worker = Machine(compile_model(model, task.target_dictionary)).worker()
    translations = worker.translate(sentences, Rules(beam=2, max_len_b=7))
    searched = [naive(model, sentence, beam=2, longest=7) for sentence in sentences]
    assert sum(reference is not None for reference in searched) > 1
    for ours, reference in zip(translations, searched, strict=True):
        if reference is None:
            continue
        assert [hypothesis.tokens.tolist() for hypothesis in ours] == [
            tokens for _, tokens in reference
        ]
        assert [hypothesis.score for hypothesis in ours] == pytest.approx(
            [score for score, _ in reference], abs=1e-4
        )


@pytest.mark.parametrize("numbers", ["bf16", "int8"])
@pytest.mark.parametrize("name", ["transformer", "gru", "linformer", "muse"])
def test_rounded_weights(name: str, numbers: str):
    """What a model with rounded weights computes: its log-probabilities are near the exact ones."""
    model, task = sharpened(name)
    sentences = models.random_sentences(LENGTHS, size=40)
    program, rules = compile_model(model, task.target_dictionary), Rules(beam=1, max_len_b=1)
    exact, rounded = (
        Machine(program, kind).worker().translate(sentences, rules) for kind in ("fp32", numbers)
    )
    for exact_hypotheses, rounded_hypotheses in zip(exact, rounded, strict=True):
        assert rounded_hypotheses[0].scores[0] == pytest.approx(
            exact_hypotheses[0].scores[0], abs=0.15
        )
    if numbers == "int8":
        outcomes = [
            Machine(program, "int8", path).worker().translate(sentences, rules)
            for path in available_paths()
        ]
        for outcome in outcomes[1:]:  # integers do not round
            assert_close(outcome, outcomes[0])


def assert_close(ours: list, theirs: list) -> None:
    for our_hypotheses, their_hypotheses in zip(ours, theirs, strict=True):
        assert our_hypotheses[0].tokens.tolist() == their_hypotheses[0].tokens.tolist()
        assert our_hypotheses[0].score == pytest.approx(their_hypotheses[0].score, abs=1e-3)


@pytest.mark.parametrize(
    "how",
    [
        {"beam_size": 1, "max_len_b": 12},
        {"beam_size": 3, "max_len_a": 0.5, "max_len_b": 4, "len_penalty": 0.3},
        {"beam_size": 5, "max_len_b": 9, "normalize_scores": False, "unk_penalty": 0.7},
        {"beam_size": 2, "max_len_b": 30, "min_len": 6, "temperature": 1.7},
        {"beam_size": 3, "max_len_b": 5, "unk_penalty": -4.0, "len_penalty": 2.0},
    ],
)
@pytest.mark.parametrize("name", ["transformer", "gru", "muse"])
def test_rules(name: str, how: dict):
    model, task = sharpened(name)
    sentences = models.random_sentences(LENGTHS, size=40, seed=5)
    worker = Machine(compile_model(model, task.target_dictionary)).worker()
    rules = Rules(
        beam=how["beam_size"],
        min_len=how.get("min_len", 1),
        max_len_a=how.get("max_len_a", 0),
        max_len_b=how["max_len_b"],
        lenpen=how.get("len_penalty", 1) if how.get("normalize_scores", True) else None,
        unkpen=how.get("unk_penalty", 0),
        temperature=how.get("temperature", 1),
    )
    assert_same(worker.translate(sentences, rules), fairseqs(model, task, sentences, **how))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--weight-softmax", "False"], "dynamic convolution without `--weight-softmax`"),
        (["--encoder-kernel-size-list", "[3, 4]"], "even number of taps in the encoder"),
    ],
)
def test_convolutions_that_the_engine_does_not_have(flags: list[str], message: str):
    model, task = models.build([*LIGHTCONV, *flags], size=40)
    with pytest.raises(ConfigError, match=f"^the engine has no .*{message}"):
        compile_model(model, task.target_dictionary)


def test_limits_of_length_are_not_rounded():
    """0.7 of 10 tokens are 7, but fewer in fp32, and the last token would be lost."""
    model, task = sharpened("transformer")
    sentences = models.random_sentences([10], size=40)
    worker = Machine(compile_model(model, task.target_dictionary)).worker()
    ours = worker.translate(sentences, Rules(beam=1, min_len=7, max_len_a=0.7, max_len_b=0))
    how = {"beam_size": 1, "min_len": 7, "max_len_a": 0.7, "max_len_b": 0}
    assert_same(ours, fairseqs(model, task, sentences, **how))
    assert len(ours[0][0].tokens) == 8


def test_limits_of_length_may_be_any_number():
    """Also one that 32 bits cannot hold: a translation ends where its positions do."""
    model, task = sharpened("transformer")
    sentences = models.random_sentences(LENGTHS, size=40)
    worker = Machine(compile_model(model, task.target_dictionary)).worker()
    long, scaled, enough = (
        worker.translate(sentences, Rules(beam=2, min_len=3, max_len_a=a, max_len_b=b))
        for a, b in ((0, 3_000_000_000), (1e300, 0), (0, 200_000))
    )
    for long_hypotheses, enough_hypotheses, scaled_hypotheses in zip(
        long, enough, scaled, strict=True
    ):
        assert [hypothesis.tokens.tolist() for hypothesis in long_hypotheses] == [
            hypothesis.tokens.tolist() for hypothesis in enough_hypotheses
        ]
        assert [hypothesis.tokens.tolist() for hypothesis in scaled_hypotheses] == [
            hypothesis.tokens.tolist() for hypothesis in enough_hypotheses
        ]
        assert len(long_hypotheses[0].tokens) > 3
    with pytest.raises(ConfigError, match="`--max-len-a` must be a number, but is inf"):
        Rules(max_len_a=float("inf"))


@pytest.mark.parametrize("path", available_paths())
@pytest.mark.parametrize("name", ["transformer", "gru", "linformer", "muse", "bmt-1"])
def test_batch_mates_change_nothing(name: str, path: str):
    """To the last bit, with every instruction set that this processor has."""
    model, task = sharpened(name)
    sentences = models.random_sentences(LENGTHS, size=40)
    worker = Machine(compile_model(model, task.target_dictionary), path=path).worker()
    rules = Rules(beam=3, max_len_b=20)
    together = worker.translate(sentences, rules)
    for sentence, in_batch in zip(sentences, together, strict=True):
        (alone,) = worker.translate([sentence], rules)
        assert [hypothesis.tokens.tolist() for hypothesis in alone] == [
            hypothesis.tokens.tolist() for hypothesis in in_batch
        ]
        assert [hypothesis.score for hypothesis in alone] == [
            hypothesis.score for hypothesis in in_batch
        ]


@pytest.mark.parametrize("path", available_paths())
def test_every_instruction_set_computes_the_same(path: str):
    model, task = sharpened("muse")
    sentences = models.random_sentences(LENGTHS, size=40)
    program, rules = compile_model(model, task.target_dictionary), Rules(beam=3, max_len_b=20)
    ours = Machine(program, path=path).worker().translate(sentences, rules)
    assert_same(ours, fairseqs(model, task, sentences, beam_size=3, max_len_b=20))


@pytest.mark.parametrize("threads", [2, 3, 11])
def test_threads_change_nothing(threads: int):
    model, task = sharpened("muse")
    sentences, rules = models.random_sentences(LENGTHS, size=40), Rules(beam=3, max_len_b=20)
    prefixes = [[4 + number] for number in range(len(sentences))]
    machine = Machine(compile_model(model, task.target_dictionary))
    for forced in (None, prefixes):
        alone = machine.worker().translate(sentences, rules, forced)
        shared = Team(machine, threads).translate(sentences, rules, forced)
        assert [
            [hypothesis.tokens.tolist() for hypothesis in hypotheses] for hypotheses in shared
        ] == [[hypothesis.tokens.tolist() for hypothesis in hypotheses] for hypotheses in alone]
        assert [[hypothesis.score for hypothesis in hypotheses] for hypotheses in shared] == [
            [hypothesis.score for hypothesis in hypotheses] for hypotheses in alone
        ]


@pytest.mark.parametrize("name", ["transformer", "gru"])
def test_prefixes(name: str):
    model, task = sharpened(name)
    sentences = models.random_sentences([5, 5, 5], size=40)
    prefixes = models.random_sentences([4, 4, 4], size=40, seed=9)
    prefixes = [sentence[:-1] for sentence in prefixes]
    worker = Machine(compile_model(model, task.target_dictionary)).worker()
    ours = worker.translate(sentences, Rules(beam=3, max_len_b=15), prefixes)
    assert_same(ours, fairseqs(model, task, sentences, prefixes, beam_size=3, max_len_b=15))
    for our, prefix in zip(ours, prefixes, strict=True):
        assert our[0].tokens.tolist()[:3] == prefix


@pytest.mark.parametrize("sentence", [[], [2] * 2000, [4, 40, 2], [-1, 2]])
def test_sentences_that_cannot_be_read(sentence: list[int]):
    model, task = models.build(ALL["transformer"], size=40)
    worker = Machine(compile_model(model, task.target_dictionary)).worker()
    with pytest.raises(DataError):
        worker.translate([[4, 2], sentence], Rules())
    with pytest.raises(DataError, match="prefix"):
        worker.translate([[4, 2]], Rules(), [[40]])
    assert worker.translate([], Rules()) == []
