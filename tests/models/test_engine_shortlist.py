"""With a shortlist the engine searches the listed tokens, and them alone."""

import itertools

import numpy as np
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_ext.engine import library, shortlist
from fairseq_ext.engine.library import Machine, Team, Worker, available_paths
from fairseq_ext.engine.program import Program, Signs
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.engine.shortlist import Shortlist
from fairseq_ext.engine.weights import NUMBERS
from fairseq_ext.generation.on_engine import with_engine
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support import engine, models

WHOLE = shortlist.Shortlist(range(engine.SIZE), [[]] * engine.SIZE)
SENTENCES = models.random_sentences(engine.LENGTHS, size=engine.SIZE)
OPTIONS = {
    "beam": Rules(beam=4, max_len_b=15, attention=True),
    "unknown": Rules(beam=3, max_len_b=15, unkpen=0.7, temperature=1.3, no_repeat_ngram_size=2),
    "sampling": Rules(beam=4, max_len_b=15, sampling=True, top_p=0.9),
    "source length": Rules(beam=2, match_source_len=True),
}


def some_lists(frequent: int = 12, per_token: int = 3) -> Shortlist:
    """A few tokens, never the pad, for each source token."""
    numbers = np.random.default_rng(5)
    tokens = [0, *range(2, engine.SIZE)]
    return shortlist.Shortlist(
        numbers.choice(tokens, frequent, replace=False),
        [numbers.choice(tokens, per_token, replace=False) for _ in range(engine.SIZE)],
    )


def small_worker(lists: Shortlist | None) -> Worker:
    return engine.worker_of(*engine.sharpened("transformer"), shortlist=lists)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        *((name, "fp32") for name in (*engine.ALL, "transformer+gru")),
        *itertools.product(("gru", "bmt-1"), ("bf16", "int8")),
    ],
)
def test_of_all_tokens_it_changes_no_bit(name: str, numbers: str) -> None:
    program = engine.program_of(*engine.together(name))
    with_it, without = (Machine(program, numbers, shortlist=x).worker() for x in (WHOLE, None))
    for rules in OPTIONS.values():
        prefixes = [[7, 9]] * len(SENTENCES) if rules.no_repeat_ngram_size else None
        actual, expected = (x.translate(SENTENCES, rules, prefixes) for x in (with_it, without))
        assert engine.bits(actual) == engine.bits(expected)


@pytest.mark.parametrize("path", available_paths())
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("how", OPTIONS)
def test_neither_batches_nor_threads_change_a_bit(how, numbers, path, monkeypatch):
    program = engine.program_of(*engine.sharpened("transformer"))
    machine = Machine(program, numbers, path, shortlist=some_lists())
    together = engine.bits(machine.worker().translate(SENTENCES, OPTIONS[how]))
    alone = [
        machine.worker().translate([sentence], OPTIONS[how], None, [number])
        for number, sentence in enumerate(SENTENCES)
    ]
    assert [engine.bits(translations)[0] for translations in alone] == together
    assert engine.bits(Team(machine, 3).translate(SENTENCES, OPTIONS[how])) == together
    monkeypatch.setattr(library, "COPIES", 1)  # no two sentences have room together
    machine = Machine(program, numbers, path, shortlist=some_lists())
    lists = [machine.shortlist.of(sentence, [engine.END]) for sentence in SENTENCES]
    assert len(list(machine.slices(lists))) == len(SENTENCES)
    assert engine.bits(machine.worker().translate(SENTENCES, OPTIONS[how])) == together


def test_numbers_in_a_row_are_32_bits() -> None:
    """One that does not fit must not become a token's."""
    values, begins = library.joined([[5, 2], [], [2**32 + 5, -(2**40), 2]])
    assert values.dtype == np.int32
    assert begins.tolist() == [0, 2, 2, 5]
    assert values.tolist() == [5, 2, 2**31 - 1, -1, 2]
    assert library.joined([])[0].dtype == library.joined([[]])[0].dtype == np.int32


@pytest.mark.parametrize("lists", [None, some_lists()], ids=["all tokens", "listed"])
@pytest.mark.parametrize("names", [*engine.WITHOUT_CACHES, "transformer+gru"])
def test_against_a_search_without_caches(names: str, lists: Shortlist | None) -> None:
    """The probabilities of each model are shares among the listed tokens."""
    voters, task = engine.together(names)
    sentences = models.random_sentences([7, 2, 4], size=engine.SIZE, seed=8)
    worker = engine.worker_of(voters, task, shortlist=lists)
    searched = []
    for sentence in sentences:
        tokens = range(engine.SIZE)
        if lists is not None:
            of_sentence = itertools.chain(*(lists.lists[token].tolist() for token in sentence))
            tokens = sorted({engine.END, *lists.frequent.tolist(), *of_sentence})
            assert len(tokens) < 35
        searched.append(engine.naive(voters, sentence, beam=2, longest=7, tokens=tokens))
    assert searched.count(None) < 2
    engine.assert_same(worker.translate(sentences, Rules(beam=2, max_len_b=7)), searched)


def make_signs(program: Program, ternary: bool) -> None:
    """An output layer of one bit, or a ternary one."""
    (layer,) = program.outputs
    weight = program.matrices[layer.weight].values
    levels = np.abs(weight).mean(1)
    values = np.sign(weight) * (np.abs(weight) > (0.5 * levels[:, None] if ternary else 0))
    signs = Signs.packed(values.astype(np.int8), levels, ternary)
    program.matrices.append(signs)
    program.outputs = [layer._replace(weight=len(program.matrices) - 1)]


@pytest.mark.parametrize("path", available_paths())
@pytest.mark.parametrize("numbers", [*NUMBERS, "signs", "signs int8", "ternary"])
def test_probabilities_are_those_of_the_listed_tokens(numbers: str, path: str) -> None:
    """Each token's log-probability, less that of all that are listed; whatever weights are."""
    program = engine.program_of(*engine.sharpened("transformer"))
    if numbers not in NUMBERS:
        make_signs(program, numbers == "ternary")
        numbers = "int8" if numbers == "signs int8" else "fp32"
    lists, rules = some_lists(20, 2), Rules(beam=1, max_len_b=1)
    unlisted = Machine(program, numbers, path).worker()
    listed = Machine(program, numbers, path, shortlist=lists).worker()
    sentence = SENTENCES[0]
    tokens = lists.of(sentence, [engine.END]).tolist()
    prefixes = [[token] for token in tokens if token not in (engine.END, 3)]

    def firsts(worker: library.Worker, forced: list[list[int]]) -> np.ndarray:
        translations = worker.translate([sentence] * len(forced), rules, forced)
        assert [hypotheses[0].tokens[:1].tolist() for hypotheses in translations] == forced
        return np.array([hypotheses[0].scores[0] for hypotheses in translations])

    log_probabilities = firsts(unlisted, [[token] for token in tokens])
    columns = [tokens.index(token) for (token,) in prefixes]
    expected = log_probabilities[columns] - np.log(np.exp(log_probabilities).sum())
    np.testing.assert_allclose(firsts(listed, prefixes), expected, atol=2e-5)


def test_a_prefix_is_possible_though_it_is_not_listed() -> None:
    worker = small_worker(shortlist.Shortlist(range(4, 20), [[]] * engine.SIZE))
    rules = Rules(beam=3, max_len_b=9)
    prefixed, free = worker.translate([SENTENCES[0]] * 2, rules, [[30, 31], []])
    assert {tuple(hypothesis.tokens[:2]) for hypothesis in prefixed} == {(30, 31)}
    for hypothesis in (*prefixed, *free):
        assert np.isfinite(hypothesis.scores).all()
        assert {*hypothesis.tokens.tolist()} <= {30, 31, engine.END, *range(4, 20)}
    assert engine.bits([free]) == engine.bits(worker.translate(SENTENCES[:1], rules))
    for wrong in (-1, engine.SIZE):
        with pytest.raises(DataError, match="a prefix must consist of target tokens"):
            worker.translate([SENTENCES[0]], Rules(beam=3), [[wrong]])


def test_references_are_scored_among_all_tokens() -> None:
    rules, targets = Rules(beam=1, max_len_b=9, listed=False), [[30, 31, engine.END]]
    listed, unlisted = (
        small_worker(lists).translate(SENTENCES[:1], rules, targets)
        for lists in (some_lists(), None)
    )
    assert engine.bits(listed) == engine.bits(unlisted)


def test_too_few_tokens_are_refused() -> None:
    worker = small_worker(shortlist.Shortlist(range(4, 13), [[]] * engine.SIZE))
    assert worker.translate(SENTENCES, Rules(beam=3))
    with pytest.raises(ConfigError, match="has 9 frequent tokens, but this search needs 10"):
        worker.translate(SENTENCES, Rules(beam=4))
    assert worker.translate(SENTENCES, Rules(beam=9, sampling=True))


@pytest.mark.parametrize(
    "lists",
    [
        shortlist.Shortlist([5, engine.SIZE], [[]] * engine.SIZE),
        shortlist.Shortlist([-1], [[]] * engine.SIZE),
        shortlist.Shortlist([5], [[engine.SIZE]] * engine.SIZE),
    ],
)
def test_lists_of_another_vocabulary_are_refused(lists: Shortlist) -> None:
    with pytest.raises(ConfigError, match="the shortlist is for another vocabulary"):
        small_worker(lists)


def test_a_batch_that_is_left_to_fairseq_is_refused_with_a_list_and_told_without(caplog) -> None:
    """A prefix with ``</s>`` is that of a target shorter than ``--prefix-size``."""
    model, task = engine.sharpened("transformer")
    dictionary = task.target_dictionary
    batch = models.sample_of(models.random_sentences([5, 7], size=engine.SIZE))
    prefixes = torch.tensor([[5, engine.END], [7, 8]])

    def generator(numbers: str, lists: Shortlist | None) -> SequenceGenerator:
        stock = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=8)
        return with_engine(stock, [model], dictionary, numbers, lists)

    listed = generator("fp32", some_lists())
    listed.generate([model], batch, prefix_tokens=prefixes[1:].expand(2, -1))
    with pytest.raises(ConfigError, match="alone, but a target is shorter than `--prefix-size`"):
        listed.generate([model], batch, prefix_tokens=prefixes)
    rounded = generator("int8", None)
    for _ in range(2):
        rounded.generate([model], batch, prefix_tokens=prefixes)
    rounded.generate([model], batch, bos_token=5)
    assert [(record.levelname, record.message.partition(": ")[2]) for record in caplog.records] == [
        ("WARNING", "a target is shorter than `--prefix-size`."),
        ("WARNING", "the start symbol of translations is not their end symbol."),
    ]


def test_lengths_in_proportion_to_the_source_are_the_engines() -> None:
    model, task = engine.sharpened("transformer")
    dictionary = task.target_dictionary
    for lengths, ours in (((1.5, 0), True), ((0.9, 0), False), ((0.9, 0.2), True), ((0, 0), False)):
        limits = {"max_len_a": lengths[0], "max_len_b": lengths[1]}
        stock = SequenceGenerator([model], dictionary, beam_size=3, **limits)
        generator = with_engine(stock, [model], dictionary, "fp32")
        assert (generator is not stock) == ours
