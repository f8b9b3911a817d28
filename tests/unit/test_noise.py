"""Noise in a test set: what each kind changes, and that it is the same for every run."""

from pathlib import Path

import pytest

from fairseq_ext.corpora.command_lines import NOISE_KINDS
from fairseq_ext.corpora.noise import KINDS, add_noise
from tests.support.harness import error_line, run, write_lines

SENTENCES = [
    "„Wo ist es?“, fragte Ana; es ist weg.",
    "",
    *(f"Satz {number} hat viele lange Wörter und keine Fehler." for number in range(500)),
]


def words(lines: list[str]) -> list[str]:
    return " ".join(lines).split(" ")


def test_the_command_has_every_kind():
    assert list(KINDS) == list(NOISE_KINDS)


def test_typing_errors_are_single_edits_in_about_the_share_of_the_words():
    noisy = list(add_noise(SENTENCES, "typos", 0.2, seed=3))
    assert noisy == list(add_noise(SENTENCES, "typos", 0.2, seed=3))
    assert noisy != list(add_noise(SENTENCES, "typos", 0.2, seed=4))
    assert noisy[7:] == [*add_noise(SENTENCES[:7] + SENTENCES[7:], "typos", 0.2, seed=3)][7:]
    pairs = list(zip(words(SENTENCES), words(noisy), strict=True))
    for before, after in pairs:
        assert abs(len(before) - len(after)) <= 1
        assert set(after) <= set(before)
        assert before == after or sum(map(str.isalpha, before)) >= 3
    long_words = [(a, b) for a, b in pairs if sum(map(str.isalpha, a)) >= 3]
    changed = sum(a != b for a, b in long_words) / len(long_words)
    assert 0.14 < changed < 0.21  # some swaps and replacements are of equal letters


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("lower", "„wo ist es?“, fragte ana; es ist weg."),
        ("upper", "„WO IST ES?“, FRAGTE ANA; ES IST WEG."),
        ("punctuation", "Wo ist es fragte Ana es ist weg"),
    ],
)
def test_other_kinds(kind: str, expected: str):
    assert list(add_noise(SENTENCES[:2], kind)) == [expected, ""]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "test.de", SENTENCES)
    command = ("fairseq-ext", "corpus", "noise", "test.de", "-o", "noisy.de", "--kind")
    shown = run(*command, "typos", "--share", "0.3", cwd=tmp_path).stdout
    noisy = (tmp_path / "noisy.de").read_text().split("\n")[:-1]
    assert noisy == list(add_noise(SENTENCES, "typos", 0.3))
    assert f"{sum(a != b for a, b in zip(noisy, SENTENCES, strict=True))} of 502 lines" in shown
    for options, message in (
        (("lower", "--seed", "2"), "`--seed` goes with `--kind typos`"),
        (("typos", "--share", "0"), "`--share` must be above 0 and at most 1, but is 0.0"),
    ):
        assert message in error_line(*command[1:], *options)
