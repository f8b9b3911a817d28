"""Near-duplicates: every near pair is in one group; test sentences are found in training text."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_ext.corpora import contamination, near_duplicates
from fairseq_ext.corpora.contamination import Match, find
from fairseq_ext.corpora.near_duplicates import draw_groups, group_pairs, hash_words
from tests.support.harness import command, write_lines

SENTENCE = st.lists(st.sampled_from("abc"), min_size=1, max_size=11).map(" ".join)
SIX = "one two, three four five six"
LONG = "one two three four five six seven eight nine ten eleven twelve"


def reduced(words: list[str]) -> set[tuple[str, ...]]:
    """A sentence, and what is left of it without each word or two that its length allows."""
    results = {tuple(words)}
    for _ in range((len(words) >= 5) + (len(words) >= 9)):
        results |= {r[:i] + r[i + 1 :] for r in results for i in range(len(r))}
    return results


def is_near(left: str, right: str) -> bool:
    """Whether sentences become equal without a word or two, found by trying all."""
    first, second = left.split(), right.split()
    if min(len(first), len(second)) < 5:
        return first == second
    return not reduced(first).isdisjoint(reduced(second))


def grouped(*sentences: str) -> list[int]:
    """Groups of sentences whose other sides have nothing in common."""
    pairs = [(sentence, f"x{row} y{row} z{row}") for row, sentence in enumerate(sentences)]
    return group_pairs(pairs).tolist()


@pytest.mark.parametrize(
    ("first", "second", "near"),
    [
        ("Hello.", "hello!", True),  # case and punctuation do not count
        ("I run.", "I ran.", False),  # too short for a change
        ("Tom is not here.", "Tom is not there.", False),
        ("Tom is not here now.", "Tom is not there now.", True),  # one replaced of five words
        ("Tom is not here now.", "Tom is really not here now.", True),  # one inserted
        ("Tom is not here now.", "Mary is not there now.", False),  # two replaced of five
        ("Tom is not here.", "Tom is not here now.", False),  # the shorter one has four words
        (LONG, LONG.replace("two", "2").replace("nine", "9"), True),  # two apart
        (LONG, LONG.replace("two three ", ""), True),
        (LONG, LONG.replace("two", "2").replace("nine", "9").replace("six", "6"), False),
        (f"{LONG} {LONG} a", f"{LONG} {LONG} b", True),  # longer than pairs apart are tried
        (f"{LONG} {LONG} a b", f"{LONG} {LONG} c d", True),
    ],
)
def test_sentences_are_near_within_the_reach_of_their_length(first, second, near):
    assert (grouped(first, second) == [0, 0]) == near


@settings(max_examples=200, deadline=None)
@given(st.lists(SENTENCE, min_size=2, max_size=12))
def test_every_near_pair_is_in_one_group(sentences: list[str]) -> None:
    """This holds for sentences within an edit distance of one or two words, too."""
    groups = grouped(*sentences)
    for left, right in itertools.combinations(range(len(sentences)), 2):
        if is_near(sentences[left], sentences[right]):
            assert groups[left] == groups[right], (sentences[left], sentences[right])


def test_either_side_joins_pairs_and_chains_join_groups() -> None:
    pairs = [
        ("Hola.", "Hello."),
        ("Buenas.", "Hello!"),  # equal targets
        ("Adiós.", "Goodbye."),
        ("¡Buenas!", "Good evening."),  # equal sources: the first group grows
    ]
    assert group_pairs(pairs).tolist() == [0, 0, 2, 0]
    assert group_pairs([]).tolist() == []


def corpus(size: int) -> list[tuple[str, str]]:
    rng = np.random.default_rng(5)
    words = [f"w{number}" for number in range(40)]
    return [
        tuple(" ".join(rng.choice(words, rng.integers(1, 12))) for _ in range(2))
        for _ in range(size)
    ]


def test_ranges_bound_the_memory_and_change_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = corpus(500)
    groups = group_pairs(pairs)
    monkeypatch.setattr(near_duplicates, "RANGE_SKELETONS", 1000)
    hashes = hash_words(source for source, _ in pairs)
    total = sum(len(values) for values, _ in near_duplicates.skeletons(hashes))
    assert near_duplicates.range_count(hashes.lengths) == -(-total // 1000)
    assert np.array_equal(group_pairs(pairs), groups)


def test_whole_groups_are_drawn_to_the_exact_size() -> None:
    groups = group_pairs(corpus(3000))
    test = draw_groups(groups, 150, "test")
    valid = draw_groups(groups, 100, "valid", exclude=test)
    assert (test.sum(), valid.sum()) == (150, 100)
    parts = [set(groups[rows].tolist()) for rows in (test, valid, ~(test | valid))]
    assert not any(left & right for left, right in itertools.combinations(parts, 2))
    assert np.array_equal(draw_groups(groups, 150, "test"), test)
    assert not np.array_equal(draw_groups(groups, 150, "another"), test)


def test_large_groups_are_not_held_out() -> None:
    groups = np.array([0] * 30 + [30, 30, 32])
    assert draw_groups(groups, 33, "test").tolist() == [False] * 30 + [True] * 3
    assert draw_groups(np.empty(0, np.int64), 3, "test").tolist() == []


WORDS = [*"abcdefghijklmnopqrst"]


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 14))) for _ in range(count)]


def test_the_same_sentences_are_found_as_by_trying_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination, "CHUNK", 70)
    monkeypatch.setattr(contamination, "MOST_PAIRS", 10)
    training = sentences(300, 1)
    draw = random.Random(2)
    test = sentences(20, 3)
    for sentence in training[:60]:
        words = sentence.split()
        for _ in range(draw.randint(0, 3)):
            place = draw.randrange(len(words) + 1)
            words[place : place + draw.randint(0, 1)] = draw.choices(WORDS, k=draw.randint(0, 1))
        test.append(" ".join(words) or "empty")
    expected = {
        number
        for number, sentence in enumerate(test)
        if any(is_near(sentence, other) for other in training)
    }
    matches = find(test, training)
    assert {match.sentence for match in matches} == expected
    assert len(expected) > 30
    for match in matches:
        equal = test[match.sentence] == training[match.line]
        assert match.kind == ("exact" if equal else "near")


@pytest.mark.parametrize(
    ("test", "training", "matches"),
    [
        ([SIX], [f"{SIX} seven", "x", SIX.upper().replace(",", ""), "x"], [Match(0, "exact", 2)]),
        ([SIX], [f"{SIX} seven", "x"], [Match(0, "near", 0)]),
        ([SIX], [], []),
        (["One two three."], ["one two four"], []),  # too short to be near
        (["a"], ["", "a"], [Match(0, "exact", 1)]),
        (["", "…", "a"], ["", "!", "a"], [Match(2, "exact", 2)]),  # without words
    ],
)
def test_the_best_match_is_found(test: list[str], training: list[str], matches: list[Match]):
    assert find(test, training) == matches


def test_a_sentence_is_near_wherever_two_words_of_fifty_differ() -> None:
    words = [f"w{number}" for number in range(50)]
    other = [*words[:3], "x", *words[4:30], *words[31:]]
    assert [match.kind for match in find([" ".join(words)], [" ".join(other)])] == ["near"]
    other[10] = "y"
    assert find([" ".join(words)], [" ".join(other)]) == []


def test_the_command_and_compare_say_what_is_in_the_training_text(tmp_path: Path) -> None:
    references = [" ".join(f"{letter}{n}" for letter in "abcdefg") for n in range(10)]
    write_lines(tmp_path / "ref.txt", references)
    write_lines(tmp_path / "train.txt", ["x y", references[3].upper(), f"{references[5]} again"])
    words = (tmp_path / "ref.txt", "--training", tmp_path / "train.txt")
    printed = command("corpus", "contamination", *words, "-o", tmp_path / "found.jsonl")
    assert "10 test sentences: the training text has 1 of them" in printed
    records = (tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(records[0])["sentence"] == 3

    write_lines(tmp_path / "a.txt", [*references[:5], *(["nothing of the sort"] * 5)])
    printed = command(
        *("compare", "--system", f"a=text:{tmp_path / 'a.txt'}"),
        *("--ref", tmp_path / "ref.txt", "--training", tmp_path / "train.txt"),
        *("--json", tmp_path / "compare.json", "--samples", "100", "-o", tmp_path / "out"),
    )
    assert "BLEU without them" in printed
    overlap = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))["overlap"]
    assert [match["kind"] for match in overlap["matches"]].count("exact") == 1
    assert set(overlap["scores"]["a"]) == {"BLEU", "chrF"}
    assert "Sentences of the training text" in (tmp_path / "out.md").read_text(encoding="utf-8")


def test_text_without_spaces_is_said_to_have_few_near_sentences(tmp_path: Path) -> None:
    test = write_lines(tmp_path / "test.zh", ["今天天气很好，我们去公园玩吧。", "你好吗？"])
    words = ("--ref", test, "--system", f"a=text:{test}", "--training", test)
    for shown in (
        command("corpus", "contamination", test, "--training", test),
        command("compare", *words, "--samples", "100"),
    ):
        assert "few sentences that differ by a word or two are noticed." in shown
