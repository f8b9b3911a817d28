"""The engine's constrained search, against fairseq's lexically constrained beam search."""

import itertools
import math
import random
import re

import pytest
import torch
from fairseq.search import LexicallyConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.token_generation_constraints import pack_constraints
from torch import Tensor

from fairseq_ext.engine import shortlist
from fairseq_ext.engine.library import Hypothesis, Machine, Team
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.generation.on_engine import NativeGenerator, obstacle, rules_of
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support import models
from tests.support.engine import SIZE, as_found, assert_same, program_of, sharpened, worker_of

LIMIT = 20
TIE = 4e-5  # the search's keys are up to some hundreds, in single precision
OPTIONS = [
    {},
    {"min_len": 4, "temperature": 1.7},
    {"min_len": 0, "unk_penalty": 1.5, "len_penalty": 0.4},
    {"normalize_scores": False},
]
Case = tuple[list[int], list[list[int]]]


class Watching(LexicallyConstrainedBeamSearch):
    """fairseq's search; it remembers how near candidates came to each other."""

    nearest = math.inf

    def step_sentence(self, step: int, sentence: int, lprobs: Tensor, states: list, *beam: Tensor):
        beams, tokens, _ = beam
        places = {*zip(beams.tolist(), tokens.tolist(), strict=True)}
        places |= {(b, t) for b in range(len(lprobs)) for t in states[b].next_tokens()}
        totals = torch.stack([lprobs[place] for place in places]).sort().values
        gaps = totals[totals.isfinite()].diff()
        self.nearest = min([self.nearest, *gaps.tolist()])
        return super().step_sentence(step, sentence, lprobs, states, *beam)


def ending(name: str) -> tuple[object, object]:
    """A random model whose translations end before the limit: a direction that all states share."""
    model, task = sharpened(name)
    torch.manual_seed(0)
    with torch.no_grad():
        source, before = (torch.randint(4, SIZE, (16, length)) for length in (7, 12))
        states = model(source, torch.full((16,), 7), before, features_only=True)[0]
        mean = states.mean((0, 1))
        model.decoder.output_projection.weight[2].add_(mean, alpha=5 / float(mean @ mean))
    return model, task


def random_cases(seed: int, count: int) -> list[Case]:
    """Sentences with constraints: from few words, so that these repeat and begin alike, or none."""
    draw = random.Random(seed)
    sentences = models.random_sentences([draw.randint(1, 9) for _ in range(count)], SIZE, seed)
    words = [draw.sample(range(3, SIZE), draw.choice([1, 2, 3, 20])) for _ in sentences]
    return [
        (
            sentence,
            [draw.choices(some, k=draw.choice([1, 1, 2, 3])) for _ in range(draw.randrange(5))],
        )
        for sentence, some in zip(sentences, words, strict=True)
    ]


def flat(constraints: list[list[int]]) -> list[int]:
    return [token for tokens in constraints for token in (*tokens, 0)]


def fairseqs(generator: SequenceGenerator, model: object, case: Case) -> list[Hypothesis] | None:
    """What fairseq finds; None if candidates were tied, or if it stops with an error.

    It stops if a hypothesis has to end before it has its words, even if others have ended.
    """
    sentence, constraints = case
    packed = pack_constraints([[torch.tensor(tokens) for tokens in constraints]])
    generator.search.nearest = math.inf
    try:
        (found,) = generator.generate([model], models.sample_of([sentence]), constraints=packed)
    except DataError:
        return None
    found = as_found(found)
    gaps = [a.score - b.score for a, b in itertools.pairwise(found)]
    return found if min([generator.search.nearest, *gaps]) > TIE else None


def has_words(tokens: list[int], constraints: list[list[int]], order: str) -> bool:
    """Whether the constraints are in a translation, one behind the other or in any order."""
    written, *texts = ["".join(f" {token} " for token in words) for words in (tokens, *constraints)]
    orders = [texts] if order == "ordered" else itertools.permutations(texts)
    return any(re.search(".*".join(row), written) for row in orders)


@pytest.mark.parametrize(
    ("order", "options"),
    [*(("unordered", options) for options in range(len(OPTIONS))), ("ordered", 0), ("ordered", 2)],
)
def test_like_fairseqs_search(order: str, options: int):
    """All hypotheses with their order and scores, of hundreds of sentences in batches."""
    model, task = ending("transformer")
    dictionary, how = task.target_dictionary, OPTIONS[options]
    machine = Machine(program_of(model, task))
    compared = ended_early = 0
    for beam in (1, 2, 4, 7):
        search = Watching(dictionary, order)
        generator = SequenceGenerator(
            [model], dictionary, beam_size=beam, max_len_b=LIMIT, search_strategy=search, **how
        )
        cases = random_cases(10 * options + beam, 12)
        theirs = [fairseqs(generator, model, case) for case in cases]
        sentences, constraints = zip(*cases, strict=True)
        ours = Team(machine, 2).translate(
            sentences, rules_of(generator), constraints=[*map(flat, constraints)]
        )
        for our, their, words in zip(ours, theirs, constraints, strict=True):
            assert our
            if not how:
                assert all(
                    has_words(hypothesis.tokens.tolist(), words, order) for hypothesis in our
                )
            if their is None:
                continue
            if max(len(hypothesis.tokens) for hypothesis in our) == LIMIT + 1:
                # Among the last candidates, fairseq's impossible ones take places of real ones.
                kept = [hypothesis.tokens.tolist() for hypothesis in their]
                our = [hypothesis for hypothesis in our if hypothesis.tokens.tolist() in kept]
            else:
                ended_early += 1
            assert_same([our], [their])
            compared += 1
    assert compared > 12
    assert ended_early > 6


@pytest.mark.parametrize("name", ["gru", "linformer", "muse"])
def test_a_generator_in_place_of_fairseqs(name: str):
    """With padded batches, attention, and sentences without constraints among the others."""
    model, task = sharpened(name)
    dictionary = task.target_dictionary
    search = LexicallyConstrainedBeamSearch(dictionary, "unordered")
    generator = SequenceGenerator(
        [model], dictionary, beam_size=1, max_len_b=12, search_strategy=search
    )
    native = NativeGenerator(generator, [model], dictionary, "fp32")
    source = torch.tensor([[1, 1, 8, 2], [5, 6, 7, 2], [1, 9, 8, 2]])
    net_input = {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}
    packed = pack_constraints([[torch.tensor([7, 8])], [], [torch.tensor([9]), torch.tensor([9])]])
    sample = {"id": torch.arange(3), "net_input": net_input}
    theirs = generator.generate([model], sample, constraints=packed)
    ours = native.generate([model], sample, constraints=packed)
    for (our,), (their,) in zip(ours, theirs, strict=True):
        assert our["tokens"].tolist() == their["tokens"].tolist()
        assert float(our["score"]) == pytest.approx(float(their["score"]), abs=1e-4)
    assert "no shortlists, constraints or samples" in obstacle(generator, numbers="torch")


def test_a_shortlist_has_the_words_of_constraints():
    model, task = sharpened("transformer")
    listed = shortlist.Shortlist([2, 10, 11, 12, 13], [[]] * SIZE)
    worker = worker_of(model, task, shortlist=listed)
    rules = Rules(beam=1, max_len_b=6)
    ((constrained,), (free,)) = worker.translate(
        [[5, 2], [5, 2]], rules, None, None, constraints=[[30, 31, 0], []]
    )
    assert has_words(constrained.tokens.tolist(), [[30, 31]], "ordered")
    assert set(free.tokens.tolist()) <= {2, 10, 11, 12, 13}


@pytest.mark.parametrize("beam", [1, 5])
def test_constraints_after_a_forced_token(beam: int):
    """As models of many languages need it; fairseq's search often stops with an error."""
    model, task = ending("transformer")
    worker = worker_of(model, task)
    rules = Rules(beam=beam, max_len_b=3)
    (hypothesis, *_), _ = worker.translate([[5, 2]] * 2, rules, [[9]] * 2, None, [[5, 0, 6, 0], []])
    assert hypothesis.tokens.tolist() == [9, 5, 6, 2]
    with pytest.raises(DataError, match="no translation has all constraints"):
        worker.translate([[5, 2]], rules, [[9]], None, [[5, 0, 6, 0, 7, 0]])


@pytest.mark.parametrize(
    ("constraints", "sampling", "error", "message"),
    [
        ([[SIZE, 0]], False, DataError, "must consist of target tokens"),
        ([[-1, 0]], False, DataError, "must consist of target tokens"),
        ([[5, 2, 0]], False, DataError, "must not have `</s>`"),
        ([[5, 6, 0, 7, 8, 0]], False, DataError, "4 tokens do not fit .* at most 3; raise"),
        ([[5, 0]], True, ConfigError, "does not go with `--sampling`"),
    ],
)
def test_what_is_refused(constraints, sampling, error, message):
    model, task = sharpened("transformer")
    worker = worker_of(model, task)
    rules = Rules(beam=2, max_len_b=3, sampling=sampling)
    with pytest.raises(error, match=message):
        worker.translate([[5, 2]], rules, constraints=constraints)


@pytest.mark.parametrize("kind", [SequenceGenerator, SequenceGeneratorWithAlignment])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": SIZE // 2 + 1}, f"`--beam` must be at most {SIZE // 2} with"),
        ({"max_len_b": 2}, "no translation has all constraints of its sentence; raise `--max-len"),
        ({"min_len": 30}, "min_len cannot be larger than max_len"),  # fairseq's own words
    ],
)
def test_what_fairseqs_search_cannot_meet_is_named(kind: type, options: dict, message: str):
    model, task = sharpened("transformer")
    target = task.target_dictionary
    search = LexicallyConstrainedBeamSearch(target, "ordered")
    words = {"beam_size": SIZE // 2, "max_len_b": 9, "search_strategy": search}
    required = pack_constraints([[torch.tensor([5, 5, 5])]])

    def generate(**changed: object) -> object:
        generator = kind([model], target, **{**words, **changed})
        return generator.generate([model], models.sample_of([[5, 6]]), constraints=required)

    if kind is SequenceGenerator:  # the other needs a model that has learned alignments
        assert generate()
    with pytest.raises((ConfigError, DataError, AssertionError), match=message):
        generate(**options)
