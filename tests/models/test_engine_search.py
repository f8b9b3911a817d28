"""The engine's samples, penalties, limits and scores, against fairseq's and exact probabilities."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.search import LengthConstrainedBeamSearch
from fairseq.search import Sampling as FairseqSampling
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from scipy.stats import chisquare
from torch import Tensor

from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.library import Machine, Team, Worker
from fairseq_ext.engine.search_options import Rules, Sampling
from fairseq_ext.generation.length_penalty import GnmtGenerator
from fairseq_ext.generation.on_engine import NativeScorer, obstacle, rules_of
from fairseq_ext.generation.sampling import EpsilonSampling, truncate
from fairseq_ext.utils.errors import DataError
from tests.models.test_engine import LENGTHS, TIE, assert_same, sharpened
from tests.support import models
from tests.support.forks import in_a_fork

DRAWS = 20_000
SENTENCE = [5, 9, 14, 7, 2]


def worker_of(model: object, task: object) -> Worker:
    return Machine(compile_model(model, task.target_dictionary)).worker()


def next_token(model: object, tokens: list[int], temperature: float = 1.0) -> Tensor:
    """Exact log-probabilities ``[V]`` of what follows ``tokens``."""
    with torch.no_grad():
        prev = torch.tensor([tokens])
        logits = model(torch.tensor([SENTENCE]), torch.tensor([len(SENTENCE)]), prev)[0][0, -1]
    return (logits.double() / temperature).log_softmax(0)


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
@pytest.mark.parametrize("name", ["transformer", "gru"])
def test_samples_have_the_models_probabilities(name: str, drawn: Sampling):
    """The first token, and the second one after the most frequent first one."""
    model, task = sharpened(name)
    rules = Rules(beam=DRAWS, max_len_b=2, temperature=2.5, unkpen=1.0, sampling=drawn)
    (samples,) = worker_of(model, task).translate([SENTENCE], rules)
    assert len(samples) == DRAWS
    firsts = Counter(int(sample.tokens[0]) for sample in samples)
    ((top, _),) = firsts.most_common(1)
    seconds = Counter(int(sample.tokens[1]) for sample in samples if sample.tokens[0] == top)
    for counts, before in ((firsts, [2]), (seconds, [2, top])):
        exact = next_token(model, before, rules.temperature)
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


def test_huge_numbers_mean_no_limit():
    model, task = sharpened("transformer")
    huge, free = (
        Rules(beam=4, max_len_a=a, max_len_b=b, sampling=Sampling(top_k=top_k))
        for a, b, top_k in ((1e308, 10**400, 2**32 + 1), (0, 10**6, 1000))
    )
    machine = Machine(compile_model(model, task.target_dictionary))
    assert machine.program.longest_target == huge.longest(5, machine.program) + 1
    worker = machine.worker()
    (huge_samples,), (free_samples,) = (
        worker.translate([SENTENCE], rules) for rules in (huge, free)
    )
    for huge_sample, free_sample in zip(huge_samples, free_samples, strict=True):
        assert huge_sample.tokens.tolist() == free_sample.tokens.tolist()


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
        net_input = {
            "src_tokens": torch.tensor([SENTENCE]),
            "src_lengths": torch.tensor([len(SENTENCE)]),
            "prev_output_tokens": torch.cat([tokens[:, -1:], tokens[:, :-1]], 1),
        }
        ((theirs,),) = scorer.generate([model], {"net_input": net_input, "target": tokens})
        assert sample.scores.tolist() == pytest.approx(
            theirs["positional_scores"].tolist(), abs=1e-4
        )
        assert sample.score == pytest.approx(float(theirs["score"]), abs=1e-4)


def test_samples_depend_on_seed_and_sentence_only():
    model, task = sharpened("transformer")
    sentences, numbers = models.random_sentences(LENGTHS, size=40), [3, 1, 4, 15, 9, 2, 6]
    rules = Rules(beam=4, max_len_b=15, sampling=Sampling(top_p=0.9, seed=2**64 - 1))
    machine = Machine(compile_model(model, task.target_dictionary))

    def texts(translations: list) -> list:
        return [
            [(hypothesis.tokens.tolist(), hypothesis.score) for hypothesis in hypotheses]
            for hypotheses in translations
        ]

    together = texts(machine.worker().translate(sentences, rules, None, numbers))
    for threads in (2, 3):
        translations = Team(machine, threads).translate(sentences, rules, None, numbers)
        assert texts(translations) == together
    backwards = machine.worker().translate(sentences[::-1], rules, None, numbers[::-1])
    assert texts(backwards)[::-1] == together
    assert texts(machine.worker().translate(sentences[2:3], rules, None, [4])) == together[2:3]
    repeated = [sentences[0]] * 2  # the same sentence, as another one of the file
    first, second = texts(machine.worker().translate(repeated, rules, None, [3, 4]))
    assert first == together[0] != second
    drawn = dataclasses.replace(rules, sampling=Sampling(top_p=0.9, seed=5))
    assert texts(machine.worker().translate(sentences, drawn, None, numbers)) != together


def test_several_callers_share_a_team():
    model, task = sharpened("transformer")
    sentences, rules = models.random_sentences(LENGTHS, size=40), Rules(beam=3, max_len_b=20)
    team = Team(Machine(compile_model(model, task.target_dictionary)), 2)
    alone = [hypotheses[0].score for hypotheses in team.translate(sentences, rules)]
    with ThreadPoolExecutor(4) as pool:
        translations_of_callers = list(
            pool.map(lambda _: team.translate(sentences, rules), range(24))
        )
    assert [
        [hypotheses[0].score for hypotheses in translations]
        for translations in translations_of_callers
    ] == [alone] * 24


def test_an_error_waits_for_the_other_workers(monkeypatch: pytest.MonkeyPatch):
    """Else the next call would run them in a second thread."""
    model, task = sharpened("transformer")
    team = Team(Machine(compile_model(model, task.target_dictionary)), 2)
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
    model, task = sharpened("transformer")
    sentences, rules = models.random_sentences(LENGTHS, size=40), Rules(beam=2, max_len_b=10)
    team = Team(Machine(compile_model(model, task.target_dictionary)), 2)

    def scores() -> list[float]:
        return [hypotheses[0].score for hypotheses in team.translate(sentences, rules)]

    alone = scores()
    assert in_a_fork(scores) == alone
    assert in_a_fork(scores, team._free) == alone  # as if another thread were translating


def test_a_fork_leaves_memory_alone_that_may_be_half_written():
    model, task = sharpened("transformer")
    team = Team(Machine(compile_model(model, task.target_dictionary)), 2)
    before = list(team._workers)
    left = in_a_fork(lambda: [worker._space is None for worker in before])
    assert left == [True, True]
    assert all(worker._space for worker in before)
    assert team._workers == before


@pytest.mark.parametrize(("a", "length"), [(0.29, 100), (0.57, 100), (0.58, 50)])
def test_the_longest_translation_is_rounded_as_by_fairseq(a: float, length: int):
    model, task = sharpened("transformer")
    model.max_source_positions = model.max_target_positions = 1024
    rules = Rules(beam=1, max_len_a=a, max_len_b=200, min_len=1000)
    program = compile_model(model, task.target_dictionary)
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


def batches_of_one(generator: SequenceGenerator, model: object, sentences: list) -> list:
    hypotheses_of_sentences = []
    for sentence in sentences:
        tokens = torch.tensor([sentence])
        net_input = {"src_tokens": tokens, "src_lengths": torch.tensor([len(sentence)])}
        hypotheses_of_sentences += generator.generate(
            [model], {"id": torch.tensor([0]), "net_input": net_input}
        )
    return hypotheses_of_sentences


@pytest.mark.parametrize("how", ["gnmt", "match", "unnormalized-match"])
@pytest.mark.parametrize("name", ["transformer", "gru"])
def test_like_fairseqs_generator(name: str, how: str):
    model, task = sharpened(name)
    dictionary = task.target_dictionary
    if how == "gnmt":
        generator = GnmtGenerator(
            [model], dictionary, beam_size=4, max_len_b=12, gnmt_alpha=0.6, temperature=1.3
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
    sentences = models.random_sentences(LENGTHS, size=40, seed=3)
    ours = worker_of(model, task).translate(sentences, rules_of(generator))
    assert_same(ours, batches_of_one(generator, model, sentences))
    if "match" in how:
        for sentence, hypotheses in zip(sentences, ours, strict=True):
            assert {len(hypothesis.tokens) for hypothesis in hypotheses} == {len(sentence) + 1}


def without_repetition(model: object, size: int, longest: int, beam: int) -> list:
    """Beam search without caches, in which no ``size`` words come twice."""
    going, ended = [(0.0, [2])], []
    for step in range(longest + 1):
        candidates = []
        for total, tokens in going:
            scores, words = next_token(model, tokens).tolist(), tokens[1:]
            used = {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}
            for token, score in enumerate(scores):
                repeats = (*words[len(words) - size + 1 :], token) in used
                if token == 1 or (token == 2 and step == 0) or (step == longest and token != 2):
                    continue
                if not repeats or step == longest:
                    candidates.append((total + score, [*tokens, token]))
        best = sorted(candidates, reverse=True)[: 2 * beam]
        assert all(a[0] - b[0] > TIE for a, b in itertools.pairwise(best))
        ended += [
            (total / (step + 1), sequence[1:])
            for total, sequence in best[:beam]
            if sequence[-1] == 2
        ]
        going = [candidate for candidate in best if candidate[1][-1] != 2][:beam]
        if len(ended) >= beam:
            break
    return sorted(ended[:beam], reverse=True)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_words_are_repeated(size: int):
    """fairseq's own code for it forbids nothing on a CPU, so a naive search is the truth."""
    model, task = sharpened("transformer")
    rules = Rules(beam=3, max_len_b=14, no_repeat_ngram_size=size)
    (hypotheses,) = worker_of(model, task).translate([SENTENCE], rules)
    (free,) = worker_of(model, task).translate([SENTENCE], Rules(beam=3, max_len_b=14))
    expected = without_repetition(model, size, 14, 3)
    assert [hypothesis.tokens.tolist() for hypothesis in hypotheses] == [
        tokens for _, tokens in expected
    ]
    assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
        [score for score, _ in expected], abs=1e-4
    )
    assert hypotheses[0].tokens.tolist() != free[0].tokens.tolist()


def test_epsilon_of_a_task_reaches_the_engine():
    """A task may set the search after the generator was built."""
    from fairseq_ext.generation.on_engine import NativeGenerator

    model, task = sharpened("transformer")
    dictionary = task.target_dictionary
    strategy = FairseqSampling(dictionary, sampling_topk=7)
    generator = SequenceGenerator([model], dictionary, search_strategy=strategy)
    native = NativeGenerator(generator, [model], dictionary, "fp32")
    assert native._rules.sampling.top_k == 7
    native.search = EpsilonSampling(dictionary, 0.2)
    assert (native._rules.sampling.top_k, native._rules.sampling.epsilon) == (0, 0.2)


@pytest.mark.parametrize("name", ["transformer", "gru", "linformer", "muse", "bmt-1"])
def test_references_are_scored_like_fairseqs(name: str):
    """Of a batch with targets of different lengths, with attention and alignments."""
    model, task = sharpened(name)
    dictionary = task.target_dictionary
    sources = models.random_sentences([4, 7, 2], size=40)
    targets = models.random_sentences([9, 1, 5], size=40, seed=6)
    sample = {
        "target": collate_tokens(list(map(torch.tensor, targets)), 1),
        "net_input": {
            "src_tokens": collate_tokens(list(map(torch.tensor, sources)), 1, left_pad=True),
            "src_lengths": torch.tensor([len(source) for source in sources]),
            "prev_output_tokens": collate_tokens(
                [torch.tensor([2, *target[:-1]]) for target in targets], 1
            ),
        },
    }
    scorer = SequenceScorer(dictionary, compute_alignment=True)
    native = NativeScorer(scorer, [model], dictionary, "fp32")
    assert native.eos == scorer.eos
    theirs = scorer.generate([model], sample)
    scorer.generate = None  # the engine does not need it
    for (our,), (their,) in zip(native.generate([model], sample), theirs, strict=True):
        assert our["tokens"].tolist() == their["tokens"].tolist()
        assert float(our["score"]) == pytest.approx(float(their["score"]), abs=1e-4)
        torch.testing.assert_close(
            our["positional_scores"], their["positional_scores"], atol=1e-4, rtol=0
        )
        if their["attention"] is None:
            assert our["attention"] is our["alignment"] is None
            continue
        attention = their["attention"][: len(our["tokens"])]
        torch.testing.assert_close(our["attention"], attention, atol=1e-4, rtol=0)
        assert our["alignment"] == their["alignment"]


def test_unusual_targets_are_left_to_fairseq():
    model, task = sharpened("transformer")
    scorer = SequenceScorer(task.target_dictionary)
    native = NativeScorer(scorer, [model], task.target_dictionary, "fp32")
    scorer.generate = lambda models, sample: "fairseq"
    source = {"src_tokens": torch.tensor([SENTENCE]), "src_lengths": torch.tensor([5])}
    for target, before in (
        ([5, 6], [2, 5]),  # without </s>
        ([5, 2, 6, 2], [2, 5, 2, 6]),
        ([5, 2], [0, 5]),  # another start symbol
    ):
        prev = {"prev_output_tokens": torch.tensor([before])}
        sample = {"target": torch.tensor([target]), "net_input": {**source, **prev}}
        assert native.generate([model], sample) == "fairseq"
