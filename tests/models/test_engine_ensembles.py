"""Several models that vote: the engine's translations are those of fairseq's ensembles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.models import BaseFairseqModel
from fairseq.sequence_scorer import SequenceScorer
from scipy.stats import chisquare
from torch import Tensor

from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.devices.executor import Executor
from fairseq_ext.engine.library import Found, Machine, Team, available_paths
from fairseq_ext.engine.program import Code, Output, Program, merged
from fairseq_ext.engine.search_options import Rules, Sampling
from fairseq_ext.engine.shortlist import Shortlist
from fairseq_ext.generation.on_engine import NativeScorer
from fairseq_ext.utils.errors import ConfigError
from tests.models.test_engine import assert_same, fairseqs, sharpened
from tests.models.test_engine_devices import assert_equal
from tests.models.test_engine_search import DRAWS, SENTENCE, allowed, without_repetition
from tests.support import models

SIZE, LENGTHS = 40, [6, 1, 9, 4]
MIXED = ("transformer", "gru")
ENSEMBLES = [
    ("transformer", "transformer"),
    ("gru", "gru"),
    ("linformer", "linformer"),
    ("muse", "muse"),
    ("bmt-1", "bmt-1"),
    ("binary-transformer", "binary-transformer"),
    MIXED,
    ("gru-luong", "bmt-6"),
    ("transformer-learned", "muse-ordinary", "linformer", "gru-dot"),
    ("binary-muse", "transformer-pre-norm", "binary-linformer"),
]


def together(names: tuple[str, ...]) -> tuple[list[BaseFairseqModel], object]:
    """Models with different random weights, and their task."""
    pairs = [sharpened(name, seed) for seed, name in enumerate(names)]
    return [model for model, _ in pairs], pairs[0][1]


def program_of(voters: list[BaseFairseqModel], task: object) -> Program:
    return merged([compile_model(model, task.target_dictionary) for model in voters])


class Voting:
    """Models whose logits are the logarithm of the mean of their probabilities."""

    def __init__(self, voters: list[BaseFairseqModel], temperature: float = 1.0) -> None:
        self.voters, self.temperature = voters, temperature

    def __call__(self, *inputs: Tensor) -> tuple[Tensor]:
        logits = [model(*inputs)[0].double() / self.temperature for model in self.voters]
        return (torch.stack([voter_logits.softmax(-1) for voter_logits in logits]).mean(0).log(),)


def bits(translations: list[list[Found]]) -> list:
    return [
        [(hypothesis.tokens.tolist(), hypothesis.score) for hypothesis in hypotheses]
        for hypotheses in translations
    ]


@pytest.mark.parametrize("names", ENSEMBLES, ids="+".join)
def test_beam_search(names: tuple[str, ...]):
    """All hypotheses, of sentences together in a batch, with scores and alignments."""
    voters, task = together(names)
    sentences = models.random_sentences(LENGTHS, size=SIZE)
    worker = Machine(program_of(voters, task)).worker()
    ours = worker.translate(sentences, Rules(beam=3, max_len_b=10, attention=True))
    theirs = fairseqs(voters, task, sentences, beam_size=3, max_len_b=10)
    assert_same(ours, theirs, attention=True)


@pytest.mark.parametrize("names", [("transformer", "gru", "muse-growing"), ("linformer", "bmt-1")])
def test_in_torch(names: tuple[str, ...]):
    """What runs on GPUs does the same."""
    voters, task = together(names)
    program, sentences = program_of(voters, task), models.random_sentences(LENGTHS, size=SIZE)
    rules = Rules(beam=3, max_len_b=10, temperature=1.4, attention=True)
    ours = Executor(program, torch.device("cpu")).translate(sentences, rules)
    expected = Machine(program).worker().translate(sentences, rules)
    assert_equal(ours, expected)


@pytest.mark.parametrize(
    "how",
    [
        {"beam_size": 1, "max_len_b": 12},
        {"beam_size": 5, "max_len_b": 9, "normalize_scores": False, "unk_penalty": 0.7},
        {"beam_size": 2, "max_len_b": 12, "min_len": 6, "temperature": 1.7},
    ],
)
def test_rules(how: dict):
    voters, task = together(MIXED)
    sentences = models.random_sentences(LENGTHS, size=SIZE, seed=5)
    rules = Rules(
        beam=how["beam_size"],
        min_len=how.get("min_len", 1),
        max_len_b=how["max_len_b"],
        lenpen=1 if how.get("normalize_scores", True) else None,
        unkpen=how.get("unk_penalty", 0),
        temperature=how.get("temperature", 1),
    )
    ours = Machine(program_of(voters, task)).worker().translate(sentences, rules)
    assert_same(ours, fairseqs(voters, task, sentences, **how))


def test_prefixes():
    voters, task = together(MIXED)
    sentences = models.random_sentences([5, 5, 5], size=SIZE)
    prefixes = [sentence[:-1] for sentence in models.random_sentences([4, 4, 4], size=SIZE, seed=9)]
    worker = Machine(program_of(voters, task)).worker()
    ours = worker.translate(sentences, Rules(beam=3, max_len_b=15), prefixes)
    assert_same(ours, fairseqs(voters, task, sentences, prefixes, beam_size=3, max_len_b=15))


def test_no_words_are_repeated():
    voters, task = together(MIXED)
    rules = Rules(beam=3, max_len_b=14, no_repeat_ngram_size=2)
    (hypotheses,) = Machine(program_of(voters, task)).worker().translate([SENTENCE], rules)
    expected = without_repetition(Voting(voters), 2, 14, 3)
    assert [hypothesis.tokens.tolist() for hypothesis in hypotheses] == [
        tokens for _, tokens in expected
    ]
    assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
        [score for score, _ in expected], abs=1e-4
    )


@pytest.mark.parametrize("names", [("gru", "gru"), MIXED, ("muse", "gru")], ids="+".join)
def test_references_are_scored_like_fairseqs(names: tuple[str, ...]):
    voters, task = together(names)
    dictionary = task.target_dictionary
    sources = models.random_sentences([4, 7, 2], size=SIZE)
    targets = models.random_sentences([9, 1, 5], size=SIZE, seed=6)
    before = [torch.tensor([2, *target[:-1]]) for target in targets]
    sample = {
        "target": collate_tokens(list(map(torch.tensor, targets)), 1),
        "net_input": {
            "src_tokens": collate_tokens(list(map(torch.tensor, sources)), 1, left_pad=True),
            "src_lengths": torch.tensor([len(source) for source in sources]),
            "prev_output_tokens": collate_tokens(before, 1),
        },
    }
    scorer = SequenceScorer(dictionary, compute_alignment=True)
    native = NativeScorer(scorer, voters, dictionary, "fp32")
    theirs = scorer.generate(voters, sample)
    scorer.generate = None  # the engine does not need it
    for (our,), (their,) in zip(native.generate(voters, sample), theirs, strict=True):
        scores = their["positional_scores"]
        torch.testing.assert_close(our["positional_scores"], scores, atol=1e-4, rtol=0)
        assert float(our["score"]) == pytest.approx(float(their["score"]), abs=1e-4)
        attention = their["attention"][: len(our["tokens"])]
        torch.testing.assert_close(our["attention"], attention, atol=1e-4, rtol=0)
        assert our["alignment"] == their["alignment"]


@pytest.mark.parametrize("path", available_paths())
def test_batch_mates_and_threads_change_nothing(path: str):
    """To the last bit, with every instruction set that this processor has."""
    voters, task = together(("transformer", "gru", "muse"))
    sentences, rules = models.random_sentences(LENGTHS, size=SIZE), Rules(beam=3, max_len_b=10)
    machine = Machine(program_of(voters, task), path=path)
    together_bits = bits(machine.worker().translate(sentences, rules))
    worker = machine.worker()
    assert [bits(worker.translate([sentence], rules))[0] for sentence in sentences] == together_bits
    for threads in (2, 3):
        assert bits(Team(machine, threads).translate(sentences, rules)) == together_bits
    theirs = fairseqs(voters, task, sentences, beam_size=3, max_len_b=10)
    assert_same(worker.translate(sentences, rules), theirs)


@pytest.mark.parametrize("name", ["transformer", "gru", "bmt-1"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_model_agrees_with_itself(name: str, count: int):
    model, task = sharpened(name)
    sentences = models.random_sentences(LENGTHS, size=SIZE)
    rules = Rules(beam=4, max_len_b=25, attention=True)
    single, several = (
        Machine(program_of(voters, task)).worker().translate(sentences, rules)
        for voters in ([model], [model] * count)
    )
    for our_hypotheses, their_hypotheses in zip(single, several, strict=True):
        assert [hypothesis.tokens.tolist() for hypothesis in our_hypotheses] == [
            hypothesis.tokens.tolist() for hypothesis in their_hypotheses
        ]
        for our, their in zip(our_hypotheses, their_hypotheses, strict=True):
            np.testing.assert_allclose(our.scores, their.scores, atol=1e-5)
            np.testing.assert_allclose(our.attention, their.attention, atol=1e-6)


@pytest.mark.parametrize("drawn", [Sampling(), Sampling(top_p=0.8), Sampling(epsilon=0.03)])
def test_samples_have_the_mean_probabilities(drawn: Sampling):
    """The first token, and the second one after the most frequent first one."""
    voters, task = together(MIXED)
    rules = Rules(beam=DRAWS, max_len_b=2, temperature=2.5, sampling=drawn)
    (samples,) = Machine(program_of(voters, task)).worker().translate([SENTENCE], rules)
    firsts = Counter(int(sample.tokens[0]) for sample in samples)
    ((top, _),) = firsts.most_common(1)
    seconds = Counter(int(sample.tokens[1]) for sample in samples if sample.tokens[0] == top)
    for counts, before in ((firsts, [2]), (seconds, [2, top])):
        inputs = [SENTENCE], [len(SENTENCE)], [before]
        with torch.no_grad():
            exact = Voting(voters, rules.temperature)(*map(torch.tensor, inputs))[0][0, -1]
        exact[1] = -torch.inf  # no pads
        if before == [2]:
            exact[2] = -torch.inf  # at least one word
        tokens = allowed(rules, exact, task.target_dictionary)
        expected = exact[tokens].softmax(0) * sum(counts.values())
        assert set(counts) <= set(tokens)
        often = [(token, float(n)) for token, n in zip(tokens, expected, strict=True) if n > 10]
        observed = [counts[token] for token, _ in often]
        scale = sum(observed) / sum(n for _, n in often)
        assert chisquare(observed, [n * scale for _, n in often]).pvalue > 1e-3


def listed(tokens: list[int]) -> Shortlist:
    """The same tokens for every sentence."""
    return Shortlist(np.array(tokens, np.int32), np.zeros(SIZE, np.int32), np.empty(0, np.int32))


def test_shortlists():
    """Each model's probabilities are shares among the listed tokens; of all of them the same."""
    voters, task = together(MIXED)
    program, sentences = program_of(voters, task), models.random_sentences(LENGTHS, size=SIZE)
    rules = Rules(beam=3, max_len_b=15)
    listing_all = Machine(program, shortlist=listed(list(range(SIZE)))).worker()
    expected = bits(Machine(program).worker().translate(sentences, rules))
    assert bits(listing_all.translate(sentences, rules)) == expected
    tokens = [2, *range(5, 31, 2)]
    worker = Machine(program, shortlist=listed(tokens)).worker()
    (hypotheses,) = worker.translate([SENTENCE], Rules(beam=1, max_len_b=1))
    inputs = [torch.tensor(row) for row in ([SENTENCE], [len(SENTENCE)], [[2]])]
    with torch.no_grad():
        logits = [model(*inputs)[0][0, -1, tokens] for model in voters]
    shares = torch.stack([voter_logits.softmax(0) for voter_logits in logits]).mean(0)
    shares[0] = 0  # at least one word
    assert hypotheses[0].tokens[0] == tokens[int(shares.argmax())]
    assert hypotheses[0].scores[0] == pytest.approx(math.log(shares.max()), abs=1e-5)


@pytest.mark.parametrize("numbers", ["bf16", "int8"])
def test_rounded_weights(numbers: str):
    voters, task = together(MIXED)
    program, rules = program_of(voters, task), Rules(beam=1, max_len_b=1)
    sentences = models.random_sentences(LENGTHS, size=SIZE)
    exact, rounded = (
        Machine(program, kind).worker().translate(sentences, rules) for kind in ("fp32", numbers)
    )
    for exact_hypotheses, rounded_hypotheses in zip(exact, rounded, strict=True):
        assert rounded_hypotheses[0].scores[0] == pytest.approx(
            exact_hypotheses[0].scores[0], abs=0.15
        )
        assert rounded_hypotheses[0].scores[0] != exact_hypotheses[0].scores[0]  # they are rounded


def test_probabilities_near_nothing():
    """A token that is e^-200 for all models has a score all the same; one of e^-9 in one, too."""
    voters, task = together(("transformer", "transformer"))
    for sign, model in zip((1, -1), voters, strict=True):
        layer = model.decoder.output_projection
        layer.bias = torch.nn.Parameter(torch.zeros(SIZE))
        layer.bias.data[[7, 8]] = torch.tensor([-200.0, -100.0 - sign * 90])
    sentence, forced = [5, 9, 2], [7, 8, 6, 2]
    worker = Machine(program_of(voters, task)).worker()
    ((hypothesis,),) = worker.translate([sentence], Rules(beam=1, max_len_b=5), [forced])
    fed = torch.tensor([[2, *forced[:-1]]])
    with torch.no_grad():
        logits = [model(torch.tensor([sentence]), torch.tensor([3]), fed)[0] for model in voters]
    scores = torch.stack(
        [voter_logits.double().log_softmax(-1) for voter_logits in logits]
    ).logsumexp(0)
    expected = [float(scores[0, step, token]) - math.log(2) for step, token in enumerate(forced)]
    assert expected[0] < -190
    assert hypothesis.scores.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-4)


# ---- programs that cannot be ---------------------------------------------------------------------


def test_models_of_other_targets():
    voters, task = together(("transformer", "transformer"))
    first, second = (compile_model(model, task.target_dictionary) for model in voters)
    assert merged([first]) is first
    second.symbols = second.symbols._replace(begin=0)
    with pytest.raises(ConfigError, match="different target tokens"):
        merged([first, second])
    larger, other = models.build(["--arch", "gru_tiny"], size=SIZE + 1)
    with pytest.raises(ConfigError, match="different target tokens"):
        merged([first, compile_model(larger, other.target_dictionary)])


def without_its_weights(program: Program) -> None:
    program.outputs[1] = Output(program.outputs[1].result, len(program.matrices))


def of_the_other_model(program: Program) -> None:
    program.outputs[1] = program.outputs[1]._replace(result=program.outputs[0].result)


def with_one_cache(program: Program) -> None:
    places = [
        n for n, operation in enumerate(program.decoder) if operation.code is Code.ATTEND_PAST
    ]
    for place in places:
        operation = program.decoder[place]
        program.decoder[place] = operation._replace(ints=(operation.ints[0], 0, operation.ints[2]))


@pytest.mark.parametrize(
    "spoil",
    [
        without_its_weights,
        of_the_other_model,
        with_one_cache,
        lambda program: program.decoder.pop(),
        lambda program: program.encoder.pop(),
    ],
)
def test_a_program_with_a_fault_does_not_run(spoil: Callable[[Program], object]):
    voters, task = together(MIXED)
    program = program_of(voters, task)
    spoil(program)
    with pytest.raises(ConfigError):
        Machine(program)
