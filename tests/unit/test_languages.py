"""A law for each language: text comes back from pieces, and scores 100 against itself."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from fairseq_ext import cli
from fairseq_ext.text import cleaning, moses, subwords
from fairseq_ext.text.pipeline import Pipeline
from tests.support.harness import write_lines
from tests.support.languages import SENTENCES

LANGUAGES = sorted({sentence.language for sentence in SENTENCES})


def texts(language: str) -> list[str]:
    return [cleaning.plain(row.text) for row in SENTENCES if row.language == language]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pipeline]:
    """Pieces of each kind, learnt from all sentences and from their tokens."""
    pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("learnt")
    tokens = [
        moses.tokenizer(row.language).tokenize(row.text, aggressive=True) for row in SENTENCES
    ]
    text = write_lines(folder / "text", [*(row.text for row in SENTENCES), *tokens])
    pipelines = {}
    for name, size in (("bpe", 400), ("sentencepiece-unigram", 2500), ("tokenizers", 2500)):
        kind, files = subwords.learn(name, [text], size, folder)
        pipelines[name] = Pipeline("en", "en", clean=True, subwords=kind, files=tuple(files))
    return pipelines


def test_there_are_sixty_languages() -> None:
    assert len(LANGUAGES) >= 60


@pytest.mark.parametrize("name", ["bpe", "sentencepiece-unigram", "tokenizers"])
def test_text_comes_back(name: str, learnt: dict[str, Pipeline]) -> None:
    """Moses' tokens come back; what they make of a text, its scripts say in `test_moses.py`."""
    plain = learnt[name]
    encode, decode = plain.encoder(), plain.decoder()
    for row in SENTENCES:
        text = cleaning.plain(row.text)
        assert decode(encode(text)) == text, row.language
        for options in ({"escape": True}, {"aggressive": True}):
            tokenized = dataclasses.replace(plain, src=row.language, tokenize=True, **options)
            tokens = tokenized.words()(text)
            assert tokenized.joiner()(tokenized.encoder()(text)) == tokens, row.language


def test_a_reference_scores_100_against_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for language in LANGUAGES:
        reference = write_lines(tmp_path / f"ref.{language}", texts(language))
        words = ["score", "--ref", str(reference), "--hyp", str(reference)]
        with pytest.raises(SystemExit) as stopped:
            cli.main([*words, "-l", f"en-{language}"])
        assert stopped.value.code == 0
        printed = capsys.readouterr().out
        assert re.search(r"BLEU.* 100\.0", printed), f"{language}: {printed}"
