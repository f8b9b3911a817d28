"""A law for each language: text comes back from pieces, and scores 100 against itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_ext import cli
from fairseq_ext.text import cleaning, moses, pipeline, subwords
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
    tokens = [moses.tokenizer(row.language).tokenize(row.text) for row in SENTENCES]
    text = write_lines(folder / "text", [*(row.text for row in SENTENCES), *tokens])
    pipelines = {}
    for name, size in (("bpe", 400), ("sentencepiece-unigram", 2500), ("tokenizers", 2500)):
        kind, files = subwords.learn(name, [text], size, folder)
        pipelines[name] = Pipeline("en", "en", clean=True, subwords=kind, files=tuple(files))
    return pipelines


def test_there_are_sixty_languages() -> None:
    assert len(LANGUAGES) >= 60


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ["bpe", "sentencepiece-unigram", "tokenizers"])
def test_text_comes_back(language: str, name: str, learnt: dict[str, Pipeline]) -> None:
    """Through Moses' tokens what comes back is what its own scripts make of them."""
    plain = learnt[name]
    for text in texts(language):
        assert plain.decoder(language)(plain.encoder(language)(text)) == text
    for options in ({"escape": True}, {"aggressive": True}):
        tokenized = pipeline.dataclasses.replace(plain, tokenize=True, **options)
        for text in texts(language):
            tokens = tokenized.words(language)(text)
            assert tokenized.joiner()(tokenized.encoder(language)(text)) == tokens
    for row in SENTENCES:
        if row.language == language and row.tokens:
            words = moses.tokenizer(language).tokenize(row.text)
            assert moses.detokenize(words, language) == row.detokenized


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_reference_scores_100_against_itself(
    language: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = write_lines(tmp_path / f"ref.{language}", texts(language))
    words = ["score", "--ref", str(reference), "--hyp", str(reference)]
    with pytest.raises(SystemExit) as stopped:
        cli.main([*words, "-l", f"en-{language}"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert printed.count("100.0") >= 2, printed
