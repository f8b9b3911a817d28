"""Scores by kind of sentence, against sacrebleu on the same sentences, and faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from sacrebleu import CHRF

from fairseq_ext.evaluation.breakdown import break_down, kinds_of, most_different
from tests.support.harness import run, write_lines

SOURCES = ["Ana wohnt ähnlich in Rom .", "Sie hat 3 Katzen .", "nein nein nein", "Was ?", "x " * 12]
REFERENCES = ["Then Ana lives ähnlich .", "She has 3 cats .", "no no no", "What ?", "y " * 12]
SYSTEMS = {
    "good": [["Ana lives in Rom .", "She has 3 dogs .", "no no no", "What ?", "y " * 11]],
    "bad": [
        ["Ana .", "a cat a cat a cat a cat", "no", "was ?", ""],
        ["<unk> lives", "She has cats .", "nein nein nein", "who", "y"],
    ],
}
TRAINING = ["no what then lives ähnlich .", *["she has 3 cats . ana"] * 12]


def test_sentences_are_sorted_into_kinds():
    kinds = kinds_of(REFERENCES, SOURCES, TRAINING)
    assert kinds == {
        "0 to 10 words": [0, 1, 2, 3],
        "11 to 20 words": [4],
        "21 to 30 words": [],
        "31 or more words": [],
        "rarest word 0 times": [4],
        "rarest word 1 to 9 times": [0, 2, 3],
        "rarest word 10 to 99 times": [1],
        "rarest word 100 or more times": [],
        "with a number": [1],
        "with a name": [0],
    }
    assert kinds_of(REFERENCES)["with a name"] == [0]
    assert kinds_of([line.lower() for line in REFERENCES])["with a name"] == []
    assert "0 to 20 characters" in kinds_of(["私は昨日、友達と一緒に学校へ行きました。"] * 3)


def test_scores_are_those_of_sacrebleu_on_the_same_sentences():
    result = break_down(REFERENCES, SYSTEMS, SOURCES, TRAINING)
    rows = kinds_of(REFERENCES, SOURCES, TRAINING)
    assert [kind.name for kind in result.kinds] == [name for name in rows if rows[name]]
    for kind in result.kinds:
        lines = rows[kind.name]
        assert kind.sentences == len(lines)
        references = [[REFERENCES[i] for i in lines]]
        for name, runs in SYSTEMS.items():
            scores = [CHRF().corpus_score([t[i] for i in lines], references).score for t in runs]
            assert kind.scores[name] == pytest.approx(sum(scores) / len(scores), abs=1e-9)


def test_faults_are_counted_in_all_runs():
    faults = break_down(REFERENCES, SYSTEMS, SOURCES).faults
    assert {fault: shares["bad"] for fault, shares in faults.items()} == {
        "unknown words": 10,
        "words three times in a row": 10,
        "copies of the source": 20,  # "was ?" but for case, and "nein nein nein"
        "no translation": 10,
    }
    assert {shares["good"] for shares in faults.values()} == {0}
    assert "copies of the source" not in break_down(REFERENCES, SYSTEMS).faults


def test_most_different_sentences_come_first():
    first, second = SYSTEMS["good"][0], SYSTEMS["bad"][0]
    truth = {
        i: abs(
            CHRF().sentence_score(first[i], [REFERENCES[i]]).score
            - CHRF().sentence_score(second[i], [REFERENCES[i]]).score
        )
        for i in range(5)
    }
    shown = most_different(first, second, REFERENCES, count=3)
    assert [i for i, *_ in shown] == sorted(truth, key=truth.get, reverse=True)[:3]
    assert most_different(first, first, REFERENCES) == []


def test_the_command_shows_them(tmp_path: Path):
    write_lines(tmp_path / "ref.en", REFERENCES)
    write_lines(tmp_path / "train.en", TRAINING)
    for name, runs in SYSTEMS.items():
        write_lines(tmp_path / name, runs[0])
    systems = [word for name in SYSTEMS for word in ("--system", f"{name}=text:{name}")]
    command = ("fairseq-ext", "compare", *systems, "--ref", "ref.en", "--differing", "bad")
    refused = run(*command, cwd=tmp_path, ok=False)
    assert "`--differing` goes with `--output` or `--json`" in refused.stderr
    options = ("--kinds", "--training", "train.en", "-o", "table")
    shown = run(*command, *options, cwd=tmp_path).stdout
    assert "rarest word 10 to 99 times" in shown
    page = (tmp_path / "table.md").read_text()
    assert "| with a number | 1 | " in page
    assert page.index("## Sentences that differ most") < page.index("bad, chrF")
