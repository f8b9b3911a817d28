"""Build models for the engine's tests, and translate with them in other ways than the engine."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from fairseq.models import BaseFairseqModel
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_ext.base import wings
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.library import Hypothesis, Machine, Worker
from fairseq_ext.engine.program import Program, merged
from tests.support import models

KERNELS = ("--encoder-kernel-size-list", "[3, 7]", "--decoder-kernel-size-list", "[7, 3]")
LIGHTCONV = ["--arch", "lightconv", *models.SMALL, *KERNELS]
LIGHT = ["--encoder-conv-type", "lightweight", "--decoder-conv-type", "lightweight"]
LSTM = ["--arch", "lstm", "--encoder-embed-dim", "16", "--decoder-embed-dim", "12"]
TRANSFORMER = ["--arch", "transformer", *models.SMALL]
LEARNED = ["--encoder-learned-pos", "--decoder-learned-pos"]
STOCK = {
    "transformer": TRANSFORMER,
    "transformer-pre-norm": [
        *(*TRANSFORMER, *models.PRE_NORM, "--share-all-embeddings", "--activation-fn", "gelu")
    ],
    "transformer-learned": [
        *(*TRANSFORMER, *LEARNED, "--layernorm-embedding", "--no-scale-embedding")
    ],
    "transformer-gelu-accurate": [*TRANSFORMER, "--activation-fn", "gelu_accurate"],
    "transformer-no-positions": [*TRANSFORMER, "--no-token-positional-embeddings"],
    "lightconv": [*LIGHTCONV, *LIGHT],
    "lightconv-raw-kernels": [*LIGHTCONV, *LIGHT, "--weight-softmax", "False"],
    "lightconv-pre-norm": [
        *(*LIGHTCONV, *LIGHT, *models.PRE_NORM, "--decoder-conv-dim", "32"),
        *("--encoder-glu", "False", "--decoder-glu", "False"),
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
COMPILED = {
    name: line.flags
    for name, line in models.UNDER_LAW.items()
    if set(line.wings) <= set(wings.names("engine"))
}
"""The flags of our architectures whose folders have an `engine.py`."""
assert {"gru", "linformer", "muse", "binary"}.intersection(wings.names()) <= {
    *wings.names("engine")
}
ALL = {**STOCK, **COMPILED}
WITHOUT_CACHES = [
    name
    for name in ALL
    if (name in STOCK or name in models.FIRST_OF_WINGS) and not name.startswith("dynamicconv")
]
"""Models for :func:`naive`: fairseq's, and one of each wing, whose variants test_laws.py tests.

Without DynamicConv, whose full forward takes another softmax of its kernels in short sentences.
"""

SIZE, PAD, END = 40, 1, 2  # size of a dictionary, and ids of two symbols
LENGTHS = [9, 3, 1, 17, 6, 12, 2]
SENTENCE = [5, 9, 14, 7, 2]
TIE = 1e-5
"""Candidates whose scores differ by less may change their order, because sums are rounded."""


def sharpened(
    name: str, seed: int = 0, target_size: int | None = None
) -> tuple[BaseFairseqModel, object]:
    """Build a model whose random weights are large enough for its words to vary."""
    model, task = models.build(ALL[name], size=SIZE, target_size=target_size, seed=seed)
    models.sharpen(model, 6 if name.startswith("lstm") else 1.5)  # fairseq's weights are < 0.1
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases of 0 and factors of 1 would hide a mistake
                parameter.add_(torch.empty_like(parameter).uniform_(-0.1, 0.1))
    return model, task


def together(names: str) -> tuple[list[BaseFairseqModel], object]:
    """Build the models in ``names``, joined by ``+``, with different weights; and their task."""
    pairs = [sharpened(name, seed) for seed, name in enumerate(names.split("+"))]
    return [model for model, _ in pairs], pairs[0][1]


def program_of(voters: BaseFairseqModel | list[BaseFairseqModel], task: object) -> Program:
    """Compile a model or an ensemble into one program of the engine."""
    voters = voters if isinstance(voters, list) else [voters]
    return merged([compile_model(model, task.target_dictionary) for model in voters])


def worker_of(
    voters: BaseFairseqModel | list[BaseFairseqModel], task: object, *how: object, **options: object
) -> Worker:
    """Make a worker of the engine; the further arguments are those of :class:`Machine`."""
    return Machine(program_of(voters, task), *how, **options).worker()


class Watching(BeamSearch):
    """fairseq's beam search, which also records the smallest gap between the best candidates."""

    nearest = math.inf

    def step(self, step: int, lprobs: Tensor, scores: Tensor, *extra: object) -> tuple:
        totals = lprobs[:, :1] if step == 0 else lprobs + scores[:, :, step - 1 : step]
        totals = totals.flatten().sort(descending=True).values[: 2 * lprobs.size(1) + 1]
        gaps = -totals.diff()
        self.nearest = min([self.nearest, *gaps[gaps.isfinite()].tolist()])
        return super().step(step, lprobs, scores, *extra)


def as_found(hypotheses: list[dict]) -> list[Hypothesis]:
    """Convert fairseq's hypotheses to the engine's class :class:`Hypothesis`."""
    return [
        Hypothesis(
            hypothesis["tokens"].numpy(),
            float(hypothesis["score"]),
            hypothesis["positional_scores"].numpy(),
            hypothesis["attention"].t().numpy() if hypothesis["attention"].numel() else None,
        )
        for hypothesis in hypotheses
    ]


def by_fairseq(
    generator: SequenceGenerator,
    voters: list[BaseFairseqModel],
    sentences: list[list[int]],
    prefixes: Sequence[list[int] | None] | None = None,
) -> list[list[Hypothesis]]:
    """Translate with a generator of fairseq, one sentence at a time."""
    translations = []
    for sentence, prefix in zip(sentences, prefixes or [None] * len(sentences), strict=True):
        forced = None if prefix is None else torch.tensor([prefix])
        sample = models.sample_of([sentence])
        translations += generator.generate(voters, sample, prefix_tokens=forced)
    return [as_found(hypotheses) for hypotheses in translations]


def fairseqs(
    voters: BaseFairseqModel | list[BaseFairseqModel],
    task: object,
    sentences: list[list[int]],
    prefixes: list[list[int]] | None = None,
    **how: object,
) -> list[list[Hypothesis] | None]:
    """Translate with fairseq's beam search; return None for sentences with tied candidates."""
    voters = voters if isinstance(voters, list) else [voters]
    translations: list[list[Hypothesis] | None] = []
    for sentence, prefix in zip(sentences, prefixes or [None] * len(sentences), strict=True):
        search = Watching(task.target_dictionary)
        generator = SequenceGenerator(voters, task.target_dictionary, search_strategy=search, **how)
        (hypotheses,) = by_fairseq(generator, voters, [sentence], [prefix])
        gaps = [a.score - b.score for a, b in itertools.pairwise(hypotheses)]
        translations.append(hypotheses if min([search.nearest, *gaps]) > TIE else None)
    assert translations.count(None) < len(translations) / 2
    return translations


def next_token(
    voters: BaseFairseqModel | list[BaseFairseqModel],
    sentence: list[int],
    before: list[int],
    temperature: float = 1.0,
    tokens: Sequence[int] = range(SIZE),
) -> Tensor:
    """Return the log of the models' mean probability of each token after ``before``, in float64."""
    inputs = [torch.tensor(row) for row in ([sentence], [len(sentence)], [before])]
    voters = voters if isinstance(voters, list) else [voters]
    with torch.no_grad():
        logits = [model(*inputs)[0][0, -1, list(tokens)].double() for model in voters]
    return torch.stack([row.div(temperature).softmax(0) for row in logits]).mean(0).log()


def naive(
    voters: BaseFairseqModel | list[BaseFairseqModel],
    sentence: list[int],
    beam: int,
    longest: int,
    tokens: Sequence[int] = range(SIZE),
    no_repeat: int = 0,
) -> list[Hypothesis] | None:
    """Search with a beam, without caches, batches or padding; return None if candidates tie.

    ``no_repeat`` is the length of n-grams that must not occur twice; 0 allows all.
    """
    unfinished, ended = [(0.0, [END])], []
    for step in range(longest + 1):
        candidates = []
        for total, before in unfinished:
            words = before[1:]
            used = {tuple(words[i : i + no_repeat]) for i in range(len(words) - no_repeat + 1)}
            scores = next_token(voters, sentence, before, tokens=tokens).tolist()
            for token, score in zip(tokens, scores, strict=True):
                repeats = (*words[len(words) - no_repeat + 1 :], token) in used
                if step == longest:
                    is_allowed = token == END
                else:
                    is_allowed = token != PAD and (step or token != END) and not repeats
                if is_allowed:
                    candidates.append((total + score, [*before, token]))
        best = sorted(candidates, reverse=True)[: 2 * beam + 1]
        if any(candidate[0] - next_[0] < TIE for candidate, next_ in itertools.pairwise(best)):
            return None
        best = best[: 2 * beam]
        ended += [
            Hypothesis(np.array(sequence[1:]), total / (step + 1), None, None)
            for total, sequence in best[:beam]
            if sequence[-1] == END
        ]
        unfinished = [candidate for candidate in best if candidate[1][-1] != END][:beam]
        if len(ended) >= beam:
            break
    return sorted(ended[:beam], key=lambda hypothesis: -hypothesis.score)


def assert_same(
    ours: Sequence[list[Hypothesis]],
    theirs: Sequence[list[Hypothesis] | None],
    attention: bool = False,
    atol: float = 1e-4,
) -> None:
    """Require equal tokens and, up to rounding, scores; skip sentences where ``theirs`` is None."""
    for our_hypotheses, their_hypotheses in zip(ours, theirs, strict=True):
        if their_hypotheses is None:
            continue
        for our, their in zip(our_hypotheses, their_hypotheses, strict=True):
            assert our.tokens.tolist() == their.tokens.tolist()
            assert our.score == pytest.approx(their.score, abs=atol)
            if their.scores is not None:
                np.testing.assert_allclose(our.scores, their.scores, atol=atol)
            if attention:
                assert (our.attention is None) == (their.attention is None)
            if our.attention is not None and their.attention is not None:
                np.testing.assert_allclose(our.attention, their.attention, atol=atol)


def bits(translations: Sequence[list[Hypothesis]]) -> list[list[tuple]]:
    """Return all numbers of translations, to compare them bit by bit."""
    return [
        [(best.tokens.tolist(), best.score, best.scores.tobytes()) for best in hypotheses]
        for hypotheses in translations
    ]
