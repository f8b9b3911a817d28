"""The engine's samples, penalties, limits and scores, against fairseq's and exact probabilities."""

import dataclasses
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fairseq.search import LengthConstrainedBeamSearch
from fairseq.search import Sampling as FairseqSampling
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from scipy.stats import chisquare
from torch import Tensor

from fairseq_ext.engine.library import Machine, Team, Worker
from fairseq_ext.engine.search_options import Rules, Sampling
from fairseq_ext.generation.generators import EpsilonSampling, penalty, truncate
from fairseq_ext.generation.on_engine import NativeGenerator, obstacle, rules_of
from fairseq_ext.utils.errors import DataError
from tests.support import models
from tests.support.engine import (
    LENGTHS,
    SENTENCE,
    SIZE,
    assert_same,
    bits,
    by_fairseq,
    naive,
    next_token,
    program_of,
    sharpened,
    together,
    worker_of,
)
from tests.support.harness import in_a_fork

DRAWS = 20_000
SENTENCES = models.random_sentences(LENGTHS, size=SIZE)


def team_of(threads: int = 2) -> Team:
    return Team(Machine(program_of(*sharpened("transformer"))), threads)


def allowed(rules: Rules, log_probabilities: Tensor, dictionary: object) -> list[int]:
    """The tokens among which fairseq's sampling draws."""
    rows, drawn = log_probabilities.clone().view(1, 1, -1), rules.sampling
    if drawn.top_p:
        probabilities, tokens = FairseqSampling(dictionary, -1, drawn.top_p)._sample_topp(rows)
        return tokens[probabilities > 0].tolist()
    if drawn.top_k:
        return rows.topk(drawn.top_k).indices.flatten().tolist()
    return truncate(rows, drawn.epsilon).flatten().isfinite().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    "drawn",
    [
        Sampling(),
        Sampling(top_k=6),
        Sampling(top_p=0.6),
        Sampling(top_p=0.95),
        Sampling(epsilon=0.03),
        Sampling(epsilon=0.9),
    ],
)
@pytest.mark.parametrize("names", ["transformer", "gru", "transformer+gru"])
def test_samples_have_the_models_probabilities(names: str, drawn: Sampling):
    """The first token, and the second one after the most frequent first one."""
    voters, task = together(names)
    rules = Rules(beam=DRAWS, max_len_b=2, temperature=2.5, unkpen=1.0, sampling=drawn)
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
    assert len(firsts) == 1 or drawn.epsilon < 0.9


def test_scores_are_those_of_the_model():
    model, task = sharpened("muse")
    rules = Rules(beam=30, max_len_b=12, sampling=Sampling(top_k=20))
    (samples,) = worker_of(model, task).translate([SENTENCE], rules)
    assert len({tuple(sample.tokens) for sample in samples}) > 20
    assert [sample.score for sample in samples] == sorted(
        (sample.score for sample in samples), reverse=True
    )
    scorer = SequenceScorer(task.target_dictionary)
    for sample in samples:
        tokens = torch.tensor([sample.tokens.tolist()])
        net_input = models.net_input(torch.tensor([SENTENCE]), tokens)
        ((theirs,),) = scorer.generate([model], {"net_input": net_input, "target": tokens})
        assert sample.scores.tolist() == pytest.approx(
            theirs["positional_scores"].tolist(), abs=1e-4
        )
        assert sample.score == pytest.approx(float(theirs["score"]), abs=1e-4)


def test_samples_depend_on_seed_and_sentence_only():
    numbers = [3, 1, 4, 15, 9, 2, 6]
    rules = Rules(beam=4, max_len_b=15, sampling=Sampling(top_p=0.9, seed=2**64 - 1))
    machine = Machine(program_of(*sharpened("transformer")))

    def drawn(sentences: list[list[int]], of: list[int], search: Rules = rules) -> list:
        return bits(machine.worker().translate(sentences, search, None, of))

    batch = drawn(SENTENCES, numbers)
    for threads in (2, 3):
        assert bits(Team(machine, threads).translate(SENTENCES, rules, None, numbers)) == batch
    assert drawn(SENTENCES[::-1], numbers[::-1])[::-1] == batch
    assert drawn(SENTENCES[2:3], [4]) == batch[2:3]
    first, second = drawn([SENTENCES[0]] * 2, [3, 4])  # the same, as another one of the file
    assert first == batch[0] != second
    other_seed = dataclasses.replace(rules, sampling=Sampling(top_p=0.9, seed=5))
    assert drawn(SENTENCES, numbers, other_seed) != batch


def test_several_callers_share_a_team():
    rules, team = Rules(beam=3, max_len_b=20), team_of()
    alone = bits(team.translate(SENTENCES, rules))
    with ThreadPoolExecutor(4) as pool:
        for translations in pool.map(lambda _: team.translate(SENTENCES, rules), range(24)):
            assert bits(translations) == alone


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


def test_a_fork_translates_with_threads_of_its_own():
    """And leaves memory alone that may be half written."""
    team = team_of()

    def translations() -> list:
        return bits(team.translate(SENTENCES, Rules(beam=2, max_len_b=10)))

    def spaces_after_closing() -> list[int]:
        for worker in team._workers:
            worker.__del__()
        return [worker._space for worker in team._workers]

    alone, spaces = translations(), [worker._space for worker in team._workers]
    assert all(spaces)
    assert in_a_fork(translations) == alone
    # As if another thread were translating:
    assert in_a_fork(translations, team._free._lock) == alone
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


def test_samples_with_prefixes():
    model, task = sharpened("transformer")
    rules = Rules(beam=6, max_len_b=9, sampling=Sampling())
    (samples,) = worker_of(model, task).translate([SENTENCE], rules, [[8, 9]])
    assert len(samples) == 6
    assert {tuple(sample.tokens[:2]) for sample in samples} == {(8, 9)}
    assert len({tuple(sample.tokens) for sample in samples}) > 1
    assert max(len(sample.tokens) for sample in samples) <= 10


@pytest.mark.parametrize("how", ["gnmt", "match", "unnormalized-match"])
@pytest.mark.parametrize("name", ["transformer", "gru"])
def test_like_fairseqs_generator(name: str, how: str):
    model, task = sharpened(name)
    dictionary = task.target_dictionary
    if how == "gnmt":
        generator = SequenceGenerator(
            [model], dictionary, beam_size=4, max_len_b=12, temperature=1.3
        )
    else:
        generator = SequenceGenerator(
            [model],
            dictionary,
            beam_size=3,
            normalize_scores=how == "match",
            match_source_len=True,
            search_strategy=LengthConstrainedBeamSearch(dictionary, 1, 0, 1, 0),
        )
    assert obstacle(generator) is None
    sentences = models.random_sentences(LENGTHS, size=SIZE, seed=3)
    rules, theirs = rules_of(generator), by_fairseq(generator, [model], sentences)
    if how == "gnmt":
        rules = dataclasses.replace(rules, lenpen=0.6, length_offset=5.0)
        for row in theirs:
            for number, hypothesis in enumerate(row):
                scores = hypothesis.scores
                score = scores.sum() / penalty(len(scores), 0.6)
                row[number] = hypothesis._replace(score=score)
            row.sort(key=lambda hypothesis: -hypothesis.score)
    ours = worker_of(model, task).translate(sentences, rules)
    assert_same(ours, theirs)
    if "match" in how:
        for sentence, hypotheses in zip(sentences, ours, strict=True):
            assert {len(hypothesis.tokens) for hypothesis in hypotheses} == {len(sentence) + 1}


@pytest.mark.parametrize(
    ("names", "size"),
    [("transformer", 1), ("transformer", 2), ("transformer", 3), ("transformer+gru", 2)],
)
def test_no_words_are_repeated(names: str, size: int):
    """fairseq's own code for it forbids nothing on a CPU, so a naive search is the truth."""
    voters, task = together(names)
    rules = Rules(beam=3, max_len_b=14, no_repeat_ngram_size=size)
    worker = worker_of(voters, task)
    (hypotheses,) = worker.translate([SENTENCE], rules)
    (free,) = worker.translate([SENTENCE], Rules(beam=3, max_len_b=14))
    expected = naive(voters, SENTENCE, beam=3, longest=14, no_repeat=size)
    assert expected is not None
    assert_same([hypotheses], [expected])
    assert "+" in names or hypotheses[0].tokens.tolist() != free[0].tokens.tolist()


def test_epsilon_of_a_task_reaches_the_engine():
    """A task may set the search after the generator was built."""
    model, task = sharpened("transformer")
    dictionary = task.target_dictionary
    strategy = FairseqSampling(dictionary, sampling_topk=7)
    generator = SequenceGenerator([model], dictionary, search_strategy=strategy)
    native = NativeGenerator(generator, [model], dictionary, "fp32")
    assert native._rules.sampling.top_k == 7
    native.search = EpsilonSampling(dictionary, 0.2)
    assert (native._rules.sampling.top_k, native._rules.sampling.epsilon) == (0, 0.2)
