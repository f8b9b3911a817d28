"""References of sacrebleu's own test sets, out of a folder that stands for its downloads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairseq_ext.evaluation import test_sets
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support.harness import REPO, run, write_lines

FIELDS = ("src", "ref", "docid", "genre", "origlang")


def test_a_set_is_scored_as_sacrebleu_scores_it(tmp_path: Path) -> None:
    lines = ["Der Hund schläft heute lange.", "Zwei Katzen sehen ihm dabei zu.", "Ende der Sache."]
    for field in FIELDS:
        write_lines(tmp_path / "sets" / "wmt14/full" / f"wmt14_full.en-de.{field}", lines)
    write_lines(tmp_path / "hyp", ["Der Hund schläft heute.", *lines[1:]])
    environment = {"SACREBLEU": str(tmp_path / "sets"), "PYTHONPATH": str(REPO), "NO_COLOR": "1"}
    set_options = ("wmt14/full", "-l", "en-de")
    theirs = run(
        "sacrebleu", "-t", *set_options, "-i", "hyp", "-b", "-w", 2, cwd=tmp_path, **environment
    )
    score = ("fairseq-ext", "score", "--hyp", "hyp", "--ref", *set_options)
    ours = run(*score, cwd=tmp_path, **environment).stdout
    assert ours.split()[:2] == ["BLEU", theirs.stdout.strip()]
    compare = ("fairseq-ext", "compare", "--system", "a=text:hyp", "--samples", 100)
    table = run(*compare, "--ref", *set_options, cwd=tmp_path, **environment).stdout
    assert f"a       {theirs.stdout.strip()} ± " in table


def test_a_file_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(Path("wmt14"), ["a"])
    assert test_sets.reference(Path("wmt14"), None) == Path("wmt14")
    assert test_sets.reference(Path("no/such.de"), None) == Path("no/such.de")  # read, and named


@pytest.mark.parametrize(
    ("name", "pair", "error", "message"),
    [
        ("wmt14/ful", "en-de", DataError, "test set of sacrebleu; did you mean `wmt14/full`"),
        ("reference", None, DataError, "`reference` is neither a file nor a test set of sacrebleu"),
        ("wmt14/full", None, ConfigError, "must be one of cs-en, .* but is missing"),
        ("wmt14/full", "de-fr", ConfigError, "`--language-pair` must be .*, but is `de-fr`"),
    ],
)
def test_what_is_neither_is_named(name: str, pair: str | None, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        test_sets.reference(Path(name), pair)


def test_a_set_that_cannot_be_had_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sacrebleu import utils

    def leave(*_: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(utils, "get_reference_files", leave)
    with pytest.raises(DataError, match=r"cannot get the test set `wmt17` \(SystemExit: 1\); try"):
        test_sets.reference(Path("wmt17"), "en-de")
    several = [os.fspath(tmp_path / name) for name in ("a", "b")]
    monkeypatch.setattr(utils, "get_reference_files", lambda *_: several)
    with pytest.raises(DataError, match="has 2 references of en-de"):
        test_sets.reference(Path("wmt17"), "en-de")
