"""The engine translates as fairseq's generator does, whatever the models and options."""

import dataclasses
import math
import time
from argparse import Namespace
from collections import Counter

import numpy as np
import pytest
import torch
from fairseq.search import LengthConstrainedBeamSearch
from fairseq.search import Sampling as FairseqSampling
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from scipy.stats import chisquare
from torch import Tensor

from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.library import Hypothesis, Machine, Team, Worker, available_paths
from fairseq_ext.engine.program import merged
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.generation.generators import truncate
from fairseq_ext.generation.on_engine import obstacle, rules_of
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support import models
from tests.support.engine import (
    ALL,
    LENGTHS,
    SENTENCE,
    SIZE,
    STOCK,
    assert_same,
    bits,
    by_fairseq,
    fairseqs,
    naive,
    next_token,
    program_of,
    sharpened,
    together,
    worker_of,
)
from tests.support.harness import in_a_fork

ENSEMBLES = [
    *("transformer+transformer", "gru+gru", "linformer+linformer", "muse+muse", "bmt-1+bmt-1"),
    *("binary-transformer+binary-transformer", "transformer+gru", "gru-luong+bmt-6"),
    *("transformer-learned+muse-ordinary+linformer+gru-dot",),
    *("binary-muse+transformer-pre-norm+binary-linformer",),
]
SENTENCES = models.random_sentences(LENGTHS, size=SIZE)


@pytest.mark.parametrize("names", [*ALL, *ENSEMBLES])
def test_beam_search(names: str):
    """All hypotheses, of sentences together in a batch, with scores and alignments."""
    voters, task = together(names)
    sentences = SENTENCES[:4]
    rules = Rules(beam=4, max_len_b=15, attention=True)
    ours = worker_of(voters, task).translate(sentences, rules)
    theirs = fairseqs(voters, task, sentences, beam_size=4, max_len_b=15)
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
    model, task = models.build(LONG[name], size=SIZE)
    sentences = models.random_sentences([300, 128, 129], size=SIZE)
    rules = Rules(beam=7, max_len_b=4, attention=True)
    ours = worker_of(model, task, path=path).translate(sentences, rules)
    theirs = fairseqs(model, task, sentences, beam_size=7, max_len_b=4)
    assert_same(ours, theirs, attention=True)


@pytest.mark.parametrize("path", [path for path in available_paths() if "avx512-" not in path])
def test_rounded_keys_and_values(path: str):
    """With weights in bf16 the decoder keeps keys and values in bf16; other paths round inputs."""

    def rounded(x: Tensor) -> Tensor:
        return x.bfloat16().float()

    model, task = models.build(LONG["transformer"], size=SIZE)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.data = rounded(4 * weight.data)
    sentences = models.random_sentences([129, 40, 7, 1], size=SIZE)
    rules = Rules(beam=7, max_len_b=8)
    ours = worker_of(model, task, "bf16", path).translate(sentences, rules)
    unrounded = fairseqs(model, task, sentences, beam_size=7, max_len_b=8)
    for layer in model.decoder.layers:
        for attention in (layer.self_attn, layer.encoder_attn):
            for projection in (attention.k_proj, attention.v_proj):
                projection.register_forward_hook(lambda module, inputs, y: rounded(y))
    theirs = fairseqs(model, task, sentences, beam_size=7, max_len_b=8)
    assert_same(ours, theirs, atol=0.02)  # sums in another order are rounded to other numbers
    assert _distance(ours, theirs) < 0.25 * _distance(ours, unrounded)


def _distance(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis] | None]) -> float:
    """Add up how much the scores of hypotheses differ, without those of tied sentences."""
    return sum(
        abs(our.score - their.score)
        for our_hypotheses, their_hypotheses in zip(ours, theirs, strict=True)
        for our, their in zip(our_hypotheses, their_hypotheses or our_hypotheses, strict=True)
    )


@pytest.mark.parametrize("numbers", ["bf16", "int8"])
@pytest.mark.parametrize("names", ["transformer", "gru", "linformer", "muse", "transformer+gru"])
def test_rounded_weights(names: str, numbers: str):
    """What a model with rounded weights computes: its log-probabilities are near the exact ones."""
    program, rules = program_of(*together(names)), Rules(beam=1, max_len_b=1)
    exact, rounded = (
        Machine(program, kind).worker().translate(SENTENCES, rules) for kind in ("fp32", numbers)
    )
    for (expected, *_), (actual, *_) in zip(exact, rounded, strict=True):
        assert actual.scores[0] == pytest.approx(expected.scores[0], abs=0.15)
        assert actual.scores[0] != expected.scores[0]
    if numbers == "int8":  # integers do not round
        for path in available_paths():
            other = Machine(program, "int8", path).worker().translate(SENTENCES, rules)
            assert_same(other, rounded, atol=1e-3)


@pytest.mark.parametrize(
    "how",
    [
        {"beam_size": 1, "max_len_b": 12},
        {"beam_size": 3, "max_len_a": 0.5, "max_len_b": 4, "len_penalty": 0.3},
        {"beam_size": 5, "max_len_b": 9, "normalize_scores": False, "unk_penalty": 0.7},
        {"beam_size": 2, "max_len_b": 30, "min_len": 6, "temperature": 1.7},
        {"beam_size": 3, "max_len_b": 5, "unk_penalty": -4.0, "len_penalty": 2.0},
        # 0.7 of 10 tokens are 7, but fewer in fp32, and the last token would be lost
        {"beam_size": 1, "min_len": 7, "max_len_a": 0.7, "max_len_b": 0},
    ],
)
@pytest.mark.parametrize("names", ["transformer", "gru", "muse", "transformer+gru"])
def test_rules(names: str, how: dict):
    voters, task = together(names)
    lengths = [10] if how["max_len_b"] == 0 else LENGTHS[:4]
    sentences = models.random_sentences(lengths, size=SIZE, seed=5)
    rules = rules_of(SequenceGenerator(voters, task.target_dictionary, **how))
    ours = worker_of(voters, task).translate(sentences, rules)
    assert_same(ours, fairseqs(voters, task, sentences, **how))
    if how["max_len_b"] == 0:
        assert len(ours[0][0].tokens) == 8


def test_limits_of_length_may_be_any_number():
    """Also one that 32 bits cannot hold: a translation ends where its positions do."""
    worker = worker_of(*sharpened("transformer"))
    long, scaled, enough = (
        worker.translate(SENTENCES, Rules(beam=2, min_len=3, max_len_a=a, max_len_b=b))
        for a, b in ((0, 3_000_000_000), (math.inf, 0), (0, 200_000))
    )
    assert bits(long) == bits(scaled) == bits(enough)
    assert min(len(hypotheses[0].tokens) for hypotheses in long) > 3


SEVERAL = "transformer+gru+muse"


@pytest.mark.parametrize("path", available_paths())
@pytest.mark.parametrize("names", ["transformer", "gru", "linformer", "muse", "bmt-1", SEVERAL])
def test_batch_mates_and_threads_change_nothing(names: str, path: str):
    """To the last bit, with every instruction set that this processor has; as fairseq has it."""
    voters, task = together(names)
    machine, rules = Machine(program_of(voters, task), path=path), Rules(beam=3, max_len_b=20)
    worker = machine.worker()
    batch = worker.translate(SENTENCES, rules)
    alone = [worker.translate([sentence], rules)[0] for sentence in SENTENCES]
    assert bits(alone) == bits(batch)
    forced = [[4 + number] for number in range(len(SENTENCES))]
    expected = bits(worker.translate(SENTENCES, rules, forced))
    for threads in (2, 3, 11):
        team = Team(machine, threads)
        assert bits(team.translate(SENTENCES, rules)) == bits(batch)
        assert bits(team.translate(SENTENCES, rules, forced)) == expected
    if names in ("muse", SEVERAL):
        assert_same(batch, fairseqs(voters, task, SENTENCES, beam_size=3, max_len_b=20))


@pytest.mark.parametrize("names", ["transformer", "gru", "transformer+gru"])
def test_prefixes(names: str):
    voters, task = together(names)
    sentences = models.random_sentences([5, 5, 5], size=SIZE)
    prefixes = [sentence[:-1] for sentence in models.random_sentences([4] * 3, size=SIZE, seed=9)]
    ours = worker_of(voters, task).translate(sentences, Rules(beam=3, max_len_b=15), prefixes)
    assert_same(ours, fairseqs(voters, task, sentences, prefixes, beam_size=3, max_len_b=15))
    assert [hypotheses[0].tokens.tolist()[:3] for hypotheses in ours] == prefixes


# Several models that vote: what is theirs alone, and programs of them that cannot be


def test_probabilities_near_nothing():
    """A token that is e^-200 for all models has a score all the same; one of e^-9 in one, too."""
    voters, task = together("transformer+transformer")
    for sign, model in zip((1, -1), voters, strict=True):
        layer = model.decoder.output_projection
        layer.bias = torch.nn.Parameter(torch.zeros(SIZE))
        layer.bias.data[[7, 8]] = torch.tensor([-200.0, -100.0 - sign * 90])
    sentence, forced = [5, 9, 2], [7, 8, 6, 2]
    rules = Rules(beam=1, max_len_b=5)
    ((hypothesis,),) = worker_of(voters, task).translate([sentence], rules, [forced])
    fed = torch.tensor([[2, *forced[:-1]]])
    with torch.no_grad():
        logits = [model(torch.tensor([sentence]), torch.tensor([3]), fed)[0] for model in voters]
    scores = torch.stack([row.double().log_softmax(-1) for row in logits]).logsumexp(0)
    expected = [float(scores[0, step, token]) - math.log(2) for step, token in enumerate(forced)]
    assert expected[0] < -190
    np.testing.assert_allclose(hypothesis.scores, expected, rtol=1e-5, atol=1e-4)


def test_ensembles_that_cannot_be():
    """With other target tokens, or an output layer of the second model that does not fit."""
    voters, task = together("transformer+gru")
    first, second = (compile_model(model, task.target_dictionary) for model in voters)
    assert merged([first]) is first
    program = merged([first, second])
    Machine(program)
    layer = program.outputs[1]
    for changes in ({"weight": len(program.matrices)}, {"result": first.outputs[0].result}):
        program.outputs[1] = layer._replace(**changes)
        with pytest.raises(ConfigError):
            Machine(program)
    second.symbols = second.symbols._replace(begin=0)
    with pytest.raises(ConfigError, match="different target tokens"):
        merged([first, second])


# The engine's samples, penalties, limits and scores, against fairseq's and exact probabilities
DRAWS = 20_000


def team_of() -> Team:
    return Team(Machine(program_of(*sharpened("transformer"))), 2)


def allowed(rules: Rules, log_probabilities: Tensor, dictionary: object) -> list[int]:
    """The tokens among which fairseq's sampling draws."""
    rows = log_probabilities.clone().view(1, 1, -1)
    if rules.top_p:
        probabilities, tokens = FairseqSampling(dictionary, -1, rules.top_p)._sample_topp(rows)
        return tokens[probabilities > 0].tolist()
    if rules.top_k:
        return rows.topk(rules.top_k).indices.flatten().tolist()
    return truncate(rows, rules.epsilon).flatten().isfinite().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    "truncation",
    [{}, {"top_k": 6}, {"top_p": 0.6}, {"top_p": 0.95}, {"epsilon": 0.03}, {"epsilon": 0.9}],
)
@pytest.mark.parametrize("names", ["transformer", "transformer+gru"])
def test_samples_have_the_models_probabilities(names: str, truncation: dict[str, float]):
    """The first token, and the second one after the most frequent first one."""
    voters, task = together(names)
    rules = Rules(beam=DRAWS, max_len_b=2, temperature=2.5, unkpen=1.0, sampling=True, **truncation)
    (samples,) = worker_of(voters, task).translate([SENTENCE], rules)
    assert len(samples) == DRAWS
    firsts = Counter(int(sample.tokens[0]) for sample in samples)
    ((top, _),) = firsts.most_common(1)
    seconds = Counter(int(sample.tokens[1]) for sample in samples if sample.tokens[0] == top)
    for counts, before in ((firsts, [2]), (seconds, [2, top])):
        exact = next_token(voters, SENTENCE, before, rules.temperature)
        exact[1] = -torch.inf  # no pads
        exact[3] -= rules.unkpen
        if before == [2]:
            exact[2] = -torch.inf  # at least one word
        tokens = allowed(rules, exact, task.target_dictionary)
        total = sum(counts.values())
        expected = exact[tokens].softmax(0) * total
        assert set(counts) <= set(tokens)
        assert {token for token, n in zip(tokens, expected, strict=True) if n > 30} <= set(counts)
        often = [(token, float(n)) for token, n in zip(tokens, expected, strict=True) if n > 10]
        if len(often) > 1:
            observed = [counts[token] for token, _ in often]
            scale = sum(observed) / sum(n for _, n in often)
            assert chisquare(observed, [n * scale for _, n in often]).pvalue > 1e-3
    assert len(firsts) == 1 or rules.epsilon < 0.9


@pytest.mark.parametrize("prefix", [[], [8, 9]])
def test_samples_have_the_scores_of_the_model(prefix: list[int]):
    model, task = sharpened("muse")
    rules = Rules(beam=30, max_len_b=12, sampling=True, top_k=20)
    (samples,) = worker_of(model, task).translate([SENTENCE], rules, [prefix])
    assert len(samples) == 30
    assert len({tuple(sample.tokens) for sample in samples}) > 20
    assert {tuple(sample.tokens[: len(prefix)]) for sample in samples} == {tuple(prefix)}
    assert max(len(sample.tokens) for sample in samples) <= 13
    assert [sample.score for sample in samples] == sorted(
        (sample.score for sample in samples), reverse=True
    )
    scorer = SequenceScorer(task.target_dictionary)
    for sample in samples:
        tokens = torch.tensor([sample.tokens.tolist()])
        net_input = models.net_input(torch.tensor([SENTENCE]), tokens)
        ((theirs,),) = scorer.generate([model], {"net_input": net_input, "target": tokens})
        scores = theirs["positional_scores"].tolist()
        assert sample.scores.tolist() == pytest.approx(scores, abs=1e-4)
        assert sample.score == pytest.approx(float(theirs["score"]), abs=1e-4)


def test_samples_depend_on_seed_and_sentence_only():
    numbers = [3, 1, 4, 15, 9, 2, 6]
    rules = Rules(beam=4, max_len_b=15, sampling=True, top_p=0.9, seed=2**64 - 1)
    machine = Machine(program_of(*sharpened("transformer")))

    def drawn(sentences: list[list[int]], of: list[int], search: Rules = rules) -> list:
        return bits(machine.worker().translate(sentences, search, None, of))

    batch = drawn(SENTENCES, numbers)
    assert bits(Team(machine, 3).translate(SENTENCES, rules, None, numbers)) == batch
    assert drawn(SENTENCES[::-1], numbers[::-1])[::-1] == batch
    first, second = drawn([SENTENCES[0]] * 2, [3, 4])  # the same, as another one of the file
    assert first == batch[0] != second
    other_seed = dataclasses.replace(rules, seed=5)
    assert drawn(SENTENCES, numbers, other_seed) != batch


def test_an_error_waits_for_the_other_workers(monkeypatch: pytest.MonkeyPatch):
    """Else the next call would run them in a second thread."""
    team = team_of()
    slow, ended, translate = team._workers[1], [], Worker.translate

    def delayed(worker: Worker, *words: object) -> list:
        if worker is slow:
            time.sleep(0.5)
            ended.append(True)
        return translate(worker, *words)

    monkeypatch.setattr(Worker, "translate", delayed)
    with pytest.raises(DataError, match="must be below 40"):
        team.translate([[4000, 2], SENTENCE], Rules(max_len_b=5))
    assert ended


def test_a_fork_leaves_memory_alone_that_may_be_half_written():
    team = team_of()
    team.translate(SENTENCES, Rules(beam=2, max_len_b=10))

    def spaces_after_closing() -> list[int]:
        for worker in team._workers:
            worker.__del__()
        return [worker._space for worker in team._workers]

    spaces = [worker._space for worker in team._workers]
    assert all(spaces)
    assert in_a_fork(spaces_after_closing) == spaces


@pytest.mark.parametrize(("a", "length"), [(0.29, 100), (0.57, 100), (0.58, 50)])
def test_the_longest_translation_is_rounded_as_by_fairseq(a: float, length: int):
    model, task = sharpened("transformer")
    model.max_source_positions = model.max_target_positions = 1024
    rules = Rules(beam=1, max_len_a=a, max_len_b=200, min_len=1000)
    program = program_of(model, task)
    program.longest_source, program.longest_target = 1000, 1000
    sentence = [5] * (length - 1) + [2]
    ((hypothesis,),) = Machine(program).worker().translate([sentence], rules)
    assert len(hypothesis.tokens) == int(a * length + 200) + 1


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("name", ["transformer", "gru"])
def test_translations_as_long_as_their_sources(name: str, normalized: bool):
    model, task = sharpened(name)
    strategy = LengthConstrainedBeamSearch(task.target_dictionary, 1, 0, 1, 0)
    options = {"beam_size": 3, "normalize_scores": normalized, "match_source_len": True}
    generator = SequenceGenerator(
        [model], task.target_dictionary, search_strategy=strategy, **options
    )
    assert obstacle(generator) is None
    sentences = models.random_sentences(LENGTHS, size=SIZE, seed=3)
    ours = worker_of(model, task).translate(sentences, rules_of(generator))
    assert_same(ours, by_fairseq(generator, [model], sentences))
    for sentence, hypotheses in zip(sentences, ours, strict=True):
        assert {len(hypothesis.tokens) for hypothesis in hypotheses} == {len(sentence) + 1}


@pytest.mark.parametrize(
    ("names", "size"),
    [("transformer", 1), ("transformer", 2), ("transformer", 3), ("transformer+gru", 2)],
)
def test_no_words_are_repeated(names: str, size: int):
    """The engine and fairseq's repaired generator find what a naive search finds."""
    voters, task = together(names)
    rules = Rules(beam=3, max_len_b=14, no_repeat_ngram_size=size)
    worker = worker_of(voters, task)
    (hypotheses,) = worker.translate([SENTENCE], rules)
    (free,) = worker.translate([SENTENCE], Rules(beam=3, max_len_b=14))
    expected = naive(voters, SENTENCE, beam=3, longest=14, no_repeat=size)
    assert expected is not None
    assert_same([hypotheses], [expected])
    options = Namespace(beam=3, max_len_b=14, no_repeat_ngram_size=size, engine="fairseq")
    generator = task.build_generator(voters, options)
    assert_same(by_fairseq(generator, voters, [SENTENCE]), [expected])
    assert "+" in names or hypotheses[0].tokens.tolist() != free[0].tokens.tolist()
