"""Test sentences that are in training text, exactly or nearly."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from fairseq_ext.corpora import contamination
from fairseq_ext.corpora.contamination import Match, find
from tests.support.harness import run, write_lines

WORDS = [*"abcdefghijklmnopqrst"]


def sentences(count: int, seed: int, longest: int = 40) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


def is_near(left: list[str], right: list[str]) -> bool:
    """Whether sentences become equal without a word or two, found by trying all."""

    def reduced(words: list[str], removed: int) -> set[tuple[str, ...]]:
        results = {tuple(words)}
        for _ in range(removed):
            results |= {r[:i] + r[i + 1 :] for r in results for i in range(len(r))}
        return results

    def edits(words: list[str]) -> int:
        return (len(words) >= 5) + (len(words) >= 9)

    shared = reduced(left, edits(left)) & reduced(right, edits(right))
    if min(len(left), len(right)) < 5:
        return left == right
    return bool(shared)


def test_the_same_sentences_are_found_as_by_trying_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination, "CHUNK", 70)
    training = sentences(300, 1, 14)
    draw = random.Random(2)
    test = sentences(20, 3, 14)
    for sentence in training[:60]:
        words = sentence.split()
        for _ in range(draw.randint(0, 3)):
            place = draw.randrange(len(words) + 1)
            words[place : place + draw.randint(0, 1)] = draw.choices(WORDS, k=draw.randint(0, 1))
        test.append(" ".join(words) or "empty")
    expected = {
        number
        for number, sentence in enumerate(test)
        if any(is_near(sentence.split(), other.split()) for other in training)
    }
    matches = find(test, training)
    assert {match.sentence for match in matches} == expected
    assert len(expected) > 30
    for match in matches:
        equal = test[match.sentence] == training[match.line]
        assert match.kind == ("exact" if equal else "near")


def test_an_equal_sentence_comes_before_a_near_one() -> None:
    test = ["One two three four five six."]
    training = ["one two three four five seven", "x", "ONE two three, four five six", "x"]
    assert find(test, training) == [Match(0, "exact", 2)]
    assert find(test, training[:2]) == [Match(0, "near", 0)]
    assert find(test, []) == []
    assert find(["One two three."], ["one two four"]) == []  # too short to be near


def test_a_sentence_is_near_wherever_two_words_of_fifty_differ() -> None:
    words = [f"w{number}" for number in range(50)]
    other = [*words[:3], "x", *words[4:30], *words[31:]]
    assert [match.kind for match in find([" ".join(words)], [" ".join(other)])] == ["near"]
    other[10] = "y"
    assert find([" ".join(words)], [" ".join(other)]) == []


def test_an_empty_sentence_is_no_obstacle() -> None:
    assert find(["a"], ["", "a"]) == [Match(0, "exact", 1)]


def test_the_command_and_compare_say_what_is_in_the_training_text(tmp_path: Path) -> None:
    references = [" ".join(f"{letter}{n}" for letter in "abcdefg") for n in range(10)]
    write_lines(tmp_path / "ref.txt", references)
    write_lines(tmp_path / "train.txt", ["x y", references[3].upper(), f"{references[5]} again"])
    done = run(
        *("fairseq-ext", "corpus", "contamination", tmp_path / "ref.txt"),
        *("--training", tmp_path / "train.txt", "-o", tmp_path / "found.jsonl"),
    )
    assert "10 test sentences: 1 are in the training text" in done.stdout
    records = (tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(records[0])["sentence"] == 3

    write_lines(tmp_path / "a.txt", [*references[:5], *(["nothing of the sort"] * 5)])
    done = run(
        *("fairseq-ext", "compare", "--system", f"a=text:{tmp_path / 'a.txt'}"),
        *("--ref", tmp_path / "ref.txt", "--training", tmp_path / "train.txt"),
        *("--json", tmp_path / "compare.json", "--samples", "100", "-o", tmp_path / "out"),
    )
    assert "BLEU without them" in done.stdout
    overlap = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))["overlap"]
    assert [match["kind"] for match in overlap["matches"]].count("exact") == 1
    assert set(overlap["scores"]["a"]) == {"BLEU", "chrF"}
    assert "Sentences of the training text" in (tmp_path / "out.md").read_text(encoding="utf-8")
