"""A trimmed bundle searches the tokens that it has as the bundle before does with those alone."""

from pathlib import Path

import pytest

from fairseq_ext.checkpoints import bundle, dictionaries, storage
from fairseq_ext.decoding.loading import model_of, open_model
from fairseq_ext.decoding.search import Search
from fairseq_ext.engine import shortlist
from fairseq_ext.model import write
from fairseq_ext.model.trim import trim
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.models.test_published import M2M
from tests.support.bundles import bundled
from tests.support.harness import command, error_line
from tests.support.published import LINES, publish, publish_many

TEXTS = {"de": "W1 w2 w3\nw7 w5 w9 x\n", "en": "w0 w4 w8\nw11 w12 w13 w14 w15\nw16 w17 w18\n"}
SENTENCES = ["w1 w2 w3", "w7", "w9 w5 w5 w3 w7 w2"]


def written(folder: Path, texts: dict[str, str] = TEXTS) -> list[Path]:
    """Files of texts, each named by its language."""
    paths = [folder / f"text.{language}" for language in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return paths


def translations(
    path: Path, sentences: list[str], listed: Path | None = None
) -> list[list[tuple[str, float]]]:
    search = Search(beam=4, nbest=4, max_len_b=8, shortlist=listed)
    model = open_model([path], None, (None, None), lambda _: search)
    ranked = model.translator.translate(sentences)
    return [[(best.tokens, best.score) for best in candidates] for candidates in ranked]


def assert_searches_alike(before: Path, after: Path, sentences: list[str]) -> None:
    """The whole model by a shortlist of the symbols that the trimmed one has for the target."""
    listed = after.parent / "allowed.txt"
    target = dictionaries.symbols(after / f"dict.{bundle.read(after).tgt}.txt")
    shortlist.write(listed, target, {})
    expected = translations(before, sentences, listed)
    for ours, reference in zip(translations(after, sentences), expected, strict=True):
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in reference]
        scores = [score for _, score in reference]
        assert [score for _, score in ours] == pytest.approx(scores, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        *((name, "fp32") for name in ("transformer", "gru-shared", "linformer", "muse", "lstm")),
        ("transformer", "bf16"),
        ("transformer", "int8"),
        ("bmt-1", "bits"),
    ],
)
def test_it_searches_as_the_whole_model_with_these_tokens(name: str, numbers: str, tmp_path: Path):
    source = bundle.read(bundled(tmp_path, name, numbers))
    sizes = trim(source, written(tmp_path), tmp_path / "small")
    assert sizes.startswith("21 of 40 symbols; weights of ")
    assert bundle.read(tmp_path / "small").numbers == numbers
    assert_searches_alike(source.folder, tmp_path / "small", SENTENCES)


def test_each_dictionary_has_the_tokens_of_its_language(tmp_path: Path):
    source = bundle.read(bundled(tmp_path, "transformer", target_size=30))
    sizes = trim(source, written(tmp_path), tmp_path / "small")
    assert sizes.startswith("10 of 40 source symbols, 15 of 30 target symbols; weights of ")
    symbols = dictionaries.symbols(tmp_path / "small" / "dict.de.txt")
    assert symbols[4:] == ["w1", "w2", "w3", "w5", "w7", "w9"]
    tables = [
        storage.load(folder)["model"]["encoder.embed_tokens.weight"]
        for folder in (source.folder, tmp_path / "small")
    ]
    assert tables[1].shape == (10, tables[0].shape[1])
    assert tables[1][4:].equal(tables[0][[5, 6, 7, 9, 11, 13]])
    assert_searches_alike(source.folder, tmp_path / "small", SENTENCES)


@pytest.mark.usefixtures("cache")
def test_language_tokens_and_single_characters_stay(tmp_path: Path):
    task = "translation_multi_simple_epoch"
    folder, words, _ = publish_many(tmp_path / "model", task, **M2M)
    path = model_of(folder, "en", "de")
    source = write.write(path, path.parent, tmp_path / "bundle")
    texts = written(tmp_path, {"en": LINES[0], "de": LINES[1]})
    trim(source, texts, tmp_path / "small")
    symbols = dictionaries.symbols(tmp_path / "small" / "dict.en.txt")
    assert {"__en__", "__de__"} <= {*symbols}
    assert "__fr__" not in symbols
    assert {symbol for symbol in words.symbols if len(symbol) == 1} <= {*symbols}
    model = open_model([tmp_path / "small"], None, (None, None), lambda _: Search())
    sentences = [model.text().encoder()(LINES[0])]
    assert_searches_alike(source.folder, tmp_path / "small", sentences)


def test_the_shortlist_keeps_its_frequent_tokens(tmp_path: Path):
    source = bundle.read(bundled(tmp_path, "transformer", target_size=30))
    frequent = ["</s>", "<unk>", *(f"w{number}" for number in range(18, 26))]
    lists = {"w1": ["w0", "w1"], "w2": ["w2"], "w30": ["w0"]}
    shortlist.write(tmp_path / "list", frequent, lists)
    whole = tmp_path / "listed"
    source = write.write(source.folder, source.folder, whole, shortlist=tmp_path / "list")
    trim(source, written(tmp_path), tmp_path / "small")
    content = (tmp_path / "small" / bundle.SHORTLIST).read_text()
    assert content == f"{shortlist.FORMAT}\t1\n{' '.join(frequent)}\nw1\tw0\n"
    assert len(translations(tmp_path / "small", SENTENCES)) == len(SENTENCES)


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ({"fr": "w1"}, ConfigError, "must be named by its language, one of de and en"),
        ({"de": "w1"}, ConfigError, "must have text in both languages, but has none in en"),
        ({"de": "w1", "en": "x y <unk>"}, DataError, "text.en has no token of the model"),
        ({"de": "w1", "en": "w0 " + " ".join(f"w{n}" for n in range(40))}, ConfigError, "left out"),
    ],
)
def test_texts_that_are_refused(texts: dict, error: type, message: str, tmp_path: Path):
    source = bundle.read(bundled(tmp_path, "transformer"))
    with pytest.raises(error, match=message):
        trim(source, written(tmp_path, texts), tmp_path / "small")
    assert not (tmp_path / "small").exists()


@pytest.mark.usefixtures("cache")
def test_an_adaptive_softmax_is_refused(tmp_path: Path):
    path = model_of(publish(tmp_path / "model", adaptive_softmax_cutoff="10,20"))
    source = write.write(path, path.parent, tmp_path / "bundle")
    texts = written(tmp_path, {"en": LINES[0], "de": LINES[1]})
    with pytest.raises(ConfigError, match="does not have a row for each symbol"):
        trim(source, texts, tmp_path / "small")


def test_the_command(tmp_path: Path):
    source = bundle.read(bundled(tmp_path, "transformer", target_size=30))
    texts, checkpoint = written(tmp_path), tmp_path / "run" / "checkpoint_best.pt"
    output = command("trim", source.folder, "--for", *texts, "-o", tmp_path / "small.zip")
    assert "10 of 40 source symbols, 15 of 30 target symbols; weights of " in output
    line = error_line("trim", checkpoint, "--for", *texts, "-o", tmp_path / "new")
    assert "checkpoint_best.pt is not a bundle; only bundles are trimmed." in line
