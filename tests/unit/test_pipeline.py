"""The pipeline that made text is saved with the data and applied to text to translate."""

import dataclasses
import io
import json
import os
import random
import time
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_ext import register
from fairseq_ext.corpora import own_text
from fairseq_ext.corpora.tatoeba import sample
from fairseq_ext.evaluation import outputs, score
from fairseq_ext.text import cleaning, pipeline, subwords
from fairseq_ext.text import generated as generated_text
from fairseq_ext.text.pipeline import FILE, Pipeline
from fairseq_ext.text.subwords import remove_bpe
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support.harness import (
    command,
    ended,
    error_line,
    fairseq,
    leaves_no_trace,
    read_lines,
    refused,
    run,
    write_lines,
    write_sides,
)
from tests.support.trainings import ARCHITECTURES, TRAINING

SIZES = {"bpe": 12, "sentencepiece-unigram": 36, "sentencepiece-bpe": 40, "tokenizers": 40}


LANGS = ("--src", "en", "--tgt", "de")
FAIRSEQ_LANGS = ("--source-lang", "en", "--target-lang", "de")


def write_corpus(folder: Path) -> Path:
    """Write a corpus of a small vocabulary whose two languages are the same."""
    draw = Random(1)
    vocabulary = [*"aeiou", "men", "dog", "sleeping", "U.S.", "red.", "it's", "well-known", "»no«"]
    for name, count in (("train", 200), ("valid", 10), ("test", 12)):
        lines = [" ".join(draw.choices(vocabulary, k=draw.randrange(3, 9))) for _ in range(count)]
        for side in ("en", "de"):
            write_lines(folder / f"{name}.{side}", lines)
    return folder


def same_sides(*lines: str) -> dict[str, list[str]]:
    """A corpus whose two languages are the same."""
    return {"en": [*lines], "de": [*lines]}


def split_text(source: Path, out: Path, *languages: str, kind: str = "bpe", size: int = 9) -> dict:
    languages = languages or ("en", "de")
    return own_text.split_into_subwords(source, out, *languages, kind=kind, size=size)


@pytest.mark.parametrize(
    ("steps", "text", "words"),
    [
        ("normalize tokenize escape lowercase", "Mr. X: „No“.", "mr. x : &quot; no . &quot;"),
        ("normalize tokenize lowercase_first", "Mr. X said No.", "mr. x said no ."),
        ("tokenize", "'I am.'", "'I am . '"),
        ("clean", "e\u0301\u200b \u00a0x ", "é x"),
        ("clean lowercase", "cafe\u200b\u0301 H\u0331arb", "café \u1e96arb"),  # in NFC after both
    ],
)
def test_the_order_of_the_steps(steps: str, text: str, words: str):
    assert Pipeline("en", "de", **dict.fromkeys(steps.split(), True)).words()(text) == words


@pytest.mark.parametrize(
    ("language", "text", "lower"),
    [
        ("tr", "İstanbul'da IŞIK çok", "istanbul ' da ışık çok"),
        ("tr-TR", "I\u0307zmir ISPARTA", "izmir ısparta"),
        ("az", "İki IŞIQ", "iki ışıq"),
        ("tur_Latn", "ISPARTA", "ısparta"),
        ("crh", "QIRIM", "qırım"),
        ("en", "In İzmir", "in izmir"),
        ("de", "STRAẞE", "straße"),
        ("el", "ΟΔΥΣΣΕΥΣ", "οδυσσευς"),
        ("lt", "Į ŠIĄ ĖJO", "į šią ėjo"),
    ],
)
@pytest.mark.parametrize("step", ["lowercase", "lowercase_first"])
def test_lower_case_is_the_languages(language, text, lower, step):
    words = Pipeline(language, "fr", clean=True, tokenize=True, **{step: True}).words()
    assert words(text) == lower


@pytest.mark.parametrize("kind", ["sentencepiece-unigram", "sentencepiece-bpe"])
def test_sentencepiece_keeps_what_cleaning_keeps(kind, tmp_path):
    pytest.importorskip("sentencepiece")
    lines = ["می\u200cخواهم بروم", "本当です！はい", "20 m² ½ ﬁn Å", "… № ⅓ ㎏"]
    sentences = [english for english, _ in sample({"train": 400})["train"]]
    text = write_lines(tmp_path / "text", lines * 20 + sentences)
    (folder := tmp_path / os.fsdecode(b"f\xfc")).mkdir()  # a name that is not UTF-8
    loaded = subwords.load(*subwords.learn(kind, [text], 150, folder))
    for line in lines:
        assert loaded.decode(loaded.encode(line)) == line == cleaning.plain(line)


def test_tokens_of_text_in_lower_case(tmp_path: Path):
    """Moses knows names and abbreviations by their case: new text becomes small before them."""
    line = "He met Anna. She saw Anna. Room No. 5 is free."
    Pipeline("en", "de", clean=True, lowercase=True).save(tmp_path)
    write_sides(tmp_path, same_sides(line.lower()))
    own_text.copy_corpus(tmp_path, tmp_path / "tokens", "en", "de", tokenize=True)
    tokens_pipeline = pipeline.load(tmp_path / "tokens")
    for side in ("en", "de"):
        lines = read_lines(tmp_path / "tokens" / f"train.{side}")
        assert lines == [tokens_pipeline.words(side)(line)]
    own_text.copy_corpus(tmp_path / "tokens", tmp_path / "back", "de", "en", tokenize=False)
    split_text(tmp_path / "tokens", tmp_path / "words", "de", "en", kind="none")
    for folder in ("back", "words"):
        assert pipeline.load(tmp_path / folder) == tokens_pipeline.towards("de", "en")
    with pytest.raises(DataError, match="is for en and de, not fr and en; give its languages"):
        split_text(tmp_path / "tokens", tmp_path / "x", "fr", "en", kind="none")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kind", "none", "--size", 9), "`--size` does not go with `--kind none`, which"),
        (("--like", "tatoeba-es-en", "--size", 9), "`--size` does not go with `--like`; the model"),
    ],
)
def test_a_size_that_nothing_would_read_is_refused(flags: tuple, message: str, tmp_path: Path):
    leaves_no_trace(tmp_path, message, "subwords", tmp_path, *LANGS, "-o", "bpe", *flags)


@pytest.mark.parametrize("line", ["ab cd", "a b"])
def test_a_text_without_repeated_pairs_of_letters_has_no_merges(line: str, tmp_path: Path):
    text = write_lines(tmp_path / "text", [line])
    with pytest.raises(DataError, match="give more text, or `--kind none`"):
        subwords.learn("bpe", [text], 9, tmp_path)


CONTROLS = ["a </s> b", "<s> <pad> <unk>", r"\</s> \\<pad>", "<a> </s>, </s>"]
# Marks of pieces:
CONTROLS += ["<<unk>> <unk>, a<unk>b", "x@@ @@ @@@ y", r"x@@\ a@@b @@\\", "▁ a▁ ▁▁"]


@pytest.mark.parametrize("kind", [*SIZES, "none"])
@pytest.mark.parametrize("line", CONTROLS)
def test_control_symbols_stay_words_of_a_text(kind: str, line: str, tmp_path: Path):
    text_pipeline = Pipeline("en", "de")
    if kind != "none":
        if kind.startswith("sentencepiece"):
            pytest.importorskip("sentencepiece")
        text = write_lines(tmp_path / "text", CONTROLS * 50 + ["a dog sleeps in the sun"] * 9)
        name, paths = subwords.learn(kind, [text], min(40, SIZES[kind]), tmp_path)
        text_pipeline = dataclasses.replace(text_pipeline, subwords=name, files=tuple(paths))
    tokens = text_pipeline.encoder()(line)
    assert not {"<s>", "</s>", "<pad>", "<unk>"} & {*tokens.split()}
    assert text_pipeline.decoder()(tokens) == line


@pytest.mark.system
def test_control_symbols_as_words_are_refused_where_nothing_escapes_them(tmp_path: Path):
    write_sides(tmp_path, same_sides("a b", "</s> a", "</s>a"))
    words = (*FAIRSEQ_LANGS, "--trainpref", tmp_path / "train", "--destdir", tmp_path / "bin")
    done = fairseq("preprocess", *words, ok=False)
    assert "train.en, line 2: `<s>`, `</s>` or `<pad>` as a word" in done.stderr
    from fairseq_cli import interactive

    register()
    write_lines(tmp_path / "input", ["a b", "</s>a", "c", "a </s> b"])
    buffers = interactive.buffered_read(str(tmp_path / "input"), 3)
    assert next(buffers) == ["a b", "</s>a", "c"]
    with pytest.raises(DataError, match=r"input, line 4: `<s>`, `</s>` or `<pad>` as"):
        next(buffers)


@pytest.mark.system
@pytest.mark.parametrize("split", ["train", "valid"])
def test_preprocess_splits_validation_prefixes_at_commas_but_not_the_training_prefix(
    split: str, tmp_path: Path
):
    texts = write_sides(tmp_path / ("a,b" if split == "train" else "text"), same_sides("a b"))
    Pipeline("en", "de").save(texts)
    words = ["--trainpref", texts / "train"]
    if split == "valid":
        dictionary = write_lines(tmp_path / "dict.txt", ["a 1", "b 1"])
        words = ["--srcdict", dictionary, "--tgtdict", dictionary]
        words += ["--validpref", f"{texts / 'valid'},{texts / 'test'}"]
    fairseq("preprocess", *words, *FAIRSEQ_LANGS, "--destdir", tmp_path / "bin")
    assert (tmp_path / "bin" / FILE).read_bytes() == (texts / FILE).read_bytes()


def test_bytes_of_a_model_make_no_further_lines(tmp_path: Path):
    """Pieces of single bytes let a model write any character, line feeds among them."""
    sentencepiece = pytest.importorskip("sentencepiece")
    tokenizers = pytest.importorskip("tokenizers")
    text = write_corpus(tmp_path / "text") / "train.en"
    files = {"input": str(text), "model_prefix": str(tmp_path / "bytes")}
    options = {"vocab_size": 400, "byte_fallback": True, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(**files, **options, minloglevel=2)
    decode = subwords.load("sentencepiece", [tmp_path / "bytes.model"]).decode
    assert decode("<0x61> <0x0A> <0x62> <0x09> <0x63> <0x0D>") == "a b c"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "bytes.json"))
    decode = subwords.load("tokenizers", [tmp_path / "bytes.json"]).decode
    assert decode("a Ċ Ġb ĉ c č") == "a b c"


def test_a_text_too_small_for_the_size(tmp_path: Path):
    pytest.importorskip("sentencepiece")
    text = write_corpus(tmp_path / "text")
    for size, limit in ((9000, "size too high"), (4, "size is smaller")):
        fault = rf"cannot learn {size:,} pieces \(`--size`\) from this text: Vocabulary {limit}"
        with pytest.raises(DataError, match=fault):
            split_text(text, tmp_path / "out", kind="sentencepiece-unigram", size=size)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.en", b"caf\xe9\n", "train.en, line 1: not UTF-8"),
        ("train.en", b"one\n", "train.en has 1 lines but"),
        ("more.en", b"\0\n", "more.en, line 1: NUL"),
    ],
)
def test_text_is_checked(name: str, content: bytes, message: str, tmp_path: Path):
    text = write_corpus(tmp_path / "text")
    (text / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        split_text(text, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sides_that_are_both_empty_are_kept(tmp_path: Path):
    text = write_corpus(tmp_path / "text")
    for side in ("en", "de"):
        (text / f"valid.{side}").write_bytes(b"")
    counts = split_text(text, tmp_path / "out")
    assert counts["valid.en"] == counts["valid.de"] == 0
    with pytest.raises(ConfigError, match="are both `en`"):
        split_text(text, tmp_path / "out", "en", "en")


def text_folder(folder: Path) -> Path:
    """Make a folder with a pipeline of merges."""
    codes = write_lines(folder / "codes", ["#version: 0.2", "a b"])
    steps = {"clean": True, "tokenize": True, "subwords": "subword-nmt"}
    Pipeline("en", "de", files=(codes,), **steps).save(folder)
    return folder


def test_long_words_are_not_remembered(tmp_path: Path, monkeypatch):
    """A server that anybody may write to would keep them for good."""
    (tmp_path / "codes").write_text("#version: 0.2\na b</w>\n")
    encode = subwords.load("subword-nmt", [tmp_path / "codes"]).encode
    merge = Mock(side_effect=subwords.merge_pairs)
    monkeypatch.setattr(subwords, "merge_pairs", merge)
    long = "ab" * subwords.LONGEST_REMEMBERED
    for _ in range(2):
        assert encode(f"ab {long}") == f"ab {' '.join(f'{letter}@@' for letter in long[:-2])} ab"
    assert [len(call.args[0]) for call in merge.mock_calls] == [2, len(long), len(long)]


def test_a_pipeline_is_saved_and_copied_but_replaces_no_other(tmp_path: Path):
    folder = text_folder(tmp_path / "a")
    first = pipeline.load(folder)
    assert (first.tokenize, first.clean, first.lowercase) == (True, True, False)
    assert first.files == (folder / "codes",)
    (tmp_path / "b").mkdir()
    pipeline.copy(folder, tmp_path / "b")
    second = pipeline.load(tmp_path / "b")
    assert pipeline.same(first, second)
    assert second.files == (tmp_path / "b" / "codes",)
    assert pipeline.load(tmp_path) is None
    assert pipeline.find_towards([tmp_path, folder], "en", "de") == first
    Pipeline("en", "de").save(tmp_path)
    with pytest.raises(DataError, match=r"made by other steps \(en → de: text as it is\)"):
        pipeline.copy(folder, tmp_path)
    assert pipeline.load(tmp_path) == Pipeline("en", "de")
    (folder / "codes").write_text("#version: 0.2\nb a\n")
    with pytest.raises(DataError, match=r"codes is not the file that .* was written with"):
        pipeline.load(folder)


def entries(**others: object) -> str:
    return json.dumps({"format": 1, "src": "en", "tgt": "de", **others})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"format": 1, "src"', "not JSON"),
        ("[1]", "not a JSON object"),
        (entries(format=2), "this version reads 1"),
        ('{"format": 1, "src": "en"}', "missing 1 required positional argument: 'tgt'"),
        (entries(x=1), "unexpected keyword argument 'x'"),
        (entries(subwords="pickle"), "`subwords`"),
        (entries(tokenize="yes"), "`tokenize` is 'yes'"),
        (entries(subwords="subword-nmt"), "`files` names 0, but `subword-nmt` has 1"),
        (entries(subwords="byte-level", files=[]), "`files` names 0, but `byte-level` has 2"),
        (entries(escape=True), r"json cannot be used: .*`--tokenize`, which is missing\. Rest"),
        (entries(src=5), "`src` is 5"),
        (entries(files=[{"name": "../codes"}]), "`files` has"),
        (entries(files=[{"name": "c", "sha256": ""}]), "does not exist"),
        ('"' + "a" * (1 << 20) + '"', "more than 1,048,576 bytes"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(content: str, reason: str, tmp_path: Path):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(DataError, match=reason):
        pipeline.load(tmp_path)


@pytest.mark.parametrize("kind", ["subword-nmt", "sentencepiece", "tokenizers"])
def test_files_that_are_no_subwords(kind: str, tmp_path: Path):
    pytest.importorskip({"subword-nmt": "subword_nmt"}.get(kind, kind))
    (tmp_path / "x").write_text("#version: 0.3\nno such thing\n")
    with pytest.raises(DataError, match=r"must be|is not a version"):
        subwords.load(kind, [tmp_path / "x"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make ``text``, ``bpe``, ``bin`` and ``run`` of ``raw`` text by a user's commands."""
    folder = tmp_path_factory.mktemp("trained")
    raw, text = write_corpus(folder / "raw"), folder / "text"
    command("prepare", "--data", raw, *LANGS, "--out", text, "--tokenize")
    command("subwords", text, *LANGS, "--size", 12, "-o", folder / "bpe")
    fairseq(
        *("preprocess", *FAIRSEQ_LANGS, "--destdir", folder / "bin"),
        *("--trainpref", folder / "bpe/train", "--validpref", folder / "bpe/valid"),
        *("--testpref", folder / "bpe/test", "--joined-dictionary"),
    )
    fairseq(
        *("train", folder / "bin", "--save-dir", folder / "run", *ARCHITECTURES["gru_tiny"]),
        *(*TRAINING, "--max-update", 3, "--max-source-positions", 100),
    )
    return folder


@pytest.fixture(scope="module")
def generated(trained: Path) -> Path:
    """Return the file with fairseq-generate's output for the test set."""
    options = ("--path", "run/checkpoint_last.pt", "--cpu", "--max-len-b", 20, "--beam", 5)
    done = fairseq("generate", "bin", *options, cwd=trained)
    (trained / "out").mkdir()
    (trained / "out" / "generated").write_text(done.stdout, encoding="utf-8")
    return trained / "out" / "generated"


@pytest.mark.system
def test_translate_needs_no_flag(trained: Path, generated: Path, tmp_path: Path):
    """Raw source lines become the binarized test set's pieces, and its translations."""
    details, out = tmp_path / "details.json", tmp_path / "out"
    model = (trained / "bin", "--path", trained / "run/checkpoint_last.pt", "--cpu")
    files = ("--input", trained / "raw/test.en", "-o", out)
    translate = ("fairseq-ext", "translate", *model, *files, "--max-len-b", 20)
    done = run(*translate, "--json", details)
    assert "replace steps of text.json" not in done.stderr
    sentences = outputs.read_generated(generated)
    ours = [json.loads(line) for line in read_lines(details)]
    encode = pipeline.load(trained / "run").encoder()
    assert [encode(row["source"]) for row in ours] == [s.source for s in sentences]
    assert [row["translations"][0]["tokens"] for row in ours] == [s.best.text for s in sentences]
    decode = pipeline.load(trained / "run").decoder()
    assert read_lines(out) == [decode(sentence.best.text) for sentence in sentences]

    output = run(*translate, "--no-tokenize").stderr
    assert "replace steps of text.json (en → de: tokenize, subword-nmt): en → de: subword" in output


@pytest.mark.system
def test_data_of_another_pipeline_is_not_mixed(trained: Path, tmp_path: Path):
    split_text(trained / "raw", tmp_path / "other")
    binary = trained / "bin"
    dictionaries = ("--srcdict", binary / "dict.en.txt", "--tgtdict", binary / "dict.de.txt")
    words = (*dictionaries, "--testpref", tmp_path / "other/test", "--destdir", binary)
    refused(fairseq("preprocess", *FAIRSEQ_LANGS, *words, ok=False), "was made by other steps")
    words = ("--data", trained / "text", *LANGS, "--out", "text", "--tokenize")  # a second time
    leaves_no_trace(tmp_path, "Moses tokens already", "prepare", *words)


@pytest.mark.system
def test_scoring_needs_no_flag(trained, generated, tmp_path):
    decode = pipeline.load(trained / "run").decoder()
    texts = [decode(sentence.best.text) for sentence in outputs.read_generated(generated)]
    assert any("." in text.rstrip(".") for text in texts)  # there is something to detokenize
    hyp, ref = tmp_path / "hyp", trained / "raw/test.de"

    status, _, output = ended("hypotheses", generated, "-o", hyp)
    assert (status, read_lines(hyp)) == (0, texts)
    steps = f"{trained / 'run' / FILE} says (en → de: tokenize, subword-nmt)"
    assert output == f"{generated}: becomes text as {steps}\n"

    scores_path = tmp_path / "scores.json"
    command("score", "--generated", generated, "--ref", ref, "--json", scores_path)
    values = [metric["value"] for metric in json.loads(scores_path.read_text())["scores"][:2]]
    assert values == [metric.value for metric in score.score_files(ref, hyp)]

    table = tmp_path / "table.json"
    systems = ("--system", f"a={generated}", "--system", f"b=text:{hyp}", "--samples", 100)
    status, _, output = ended("compare", *systems, "--ref", ref, "--json", table)
    assert (status, output.count("becomes text as")) == (0, 1)
    first, second = (row["scores"] for row in json.loads(table.read_text())["systems"])
    assert first["BLEU"]["value"] == second["BLEU"]["value"]


@pytest.mark.system
def test_flags_override_and_say_so(trained, generated, tmp_path):
    best = [sentence.best.text for sentence in outputs.read_generated(generated)]
    hyp = tmp_path / "hyp"
    read = ("hypotheses", generated, "-o", hyp)
    *_, output = ended(*read, "--no-remove-bpe")
    assert read_lines(hyp) == best
    assert "options replace steps of" in output
    assert output.endswith("(en → de: tokenize, subword-nmt): en → de: text as it is\n")
    *_, output = ended(*read, "--keep-tokens")
    assert read_lines(hyp) == [remove_bpe(line) for line in best]
    assert output.endswith(": en → de: subword-nmt\n")
    *_, output = ended(*read, "--detokenize", "en", "--remove-bpe")
    assert output.endswith(": en → en: tokenize, subword-nmt\n")
    *_, output = ended(*read, "--detokenize", "de", "--remove-bpe")
    assert "becomes text as" in output  # what it says anyway


@pytest.mark.system
def test_the_text_of_a_moved_run_is_found_and_of_another_is_not(trained, generated, tmp_path):
    moved = tmp_path / "moved"
    (moved / "run").mkdir(parents=True)
    content = generated.read_text(encoding="utf-8")
    (moved / "out").write_text(content.replace(str(trained), str(tmp_path / "gone")))
    assert generated_text.find(moved / "out") is None
    status, _, output = ended("hypotheses", moved / "out", "-o", tmp_path / "hyp")
    assert status == 0
    assert f"{tmp_path / 'gone' / 'run' / FILE} is gone, or belongs to another run" in output
    pipeline.copy(trained / "run", moved / "run")
    folder, steps = generated_text.find(moved / "out")
    assert (folder, steps.tokenize) == (moved / "run", True)
    (moved / "run" / FILE).write_text('{"format": 1, "src": "en", "tgt": "de"}')
    assert generated_text.find(moved / "out") is None


@pytest.mark.parametrize(
    "langs", [("en", "de"), ("pt-BR", "en"), ("en", "pt-BR"), ("en-GB", "en-US")]
)
def test_text_is_noted_for_both_directions(langs: tuple[str, str], tmp_path: Path):
    assert generated_text.note([tmp_path], *langs) is None
    Pipeline(*langs, tokenize=True).save(tmp_path)
    for src, tgt in (langs, langs[::-1]):
        (tmp_path / "out").write_text(f"{generated_text.note([tmp_path], src, tgt)}\nS-0\tx\n")
        _, steps = generated_text.find(tmp_path / "out")
        assert (steps.src, steps.tgt, steps.tokenize) == (src, tgt, True)
        assert steps.towards(src, "fr") is None


def test_a_note_cannot_speak_to_the_terminal(tmp_path: Path):
    note = f"Text of en-de as in /x\x1b[31m/{FILE} (SHA-256 {'0' * 64})"
    (tmp_path / "out").write_text(f"{note}\nS-0\ta\nH-0\t-1\ta@@ b\n")
    assert generated_text.find(tmp_path / "out") is None
    status, _, output = ended("hypotheses", tmp_path / "out", "-o", tmp_path / "hyp")
    assert (status, read_lines(tmp_path / "hyp")) == (0, ["a@@ b"])
    assert output.startswith(f"{tmp_path}/out: /x\\x1b[31m/{FILE} is gone")


def test_pieces_of_sentencepiece_are_never_scored(tmp_path):
    pytest.importorskip("sentencepiece")
    text, run = write_corpus(tmp_path / "text"), tmp_path / "run"
    split_text(text, run, kind="sentencepiece-unigram", size=36)
    for name, folder in (("pieces", run), ("words", text)):  # as of --remove-bpe sentencepiece
        rows = enumerate(read_lines(folder / "test.de"))
        blocks = [f"S-{n}\t{line}\nT-{n}\t{line}\nH-{n}\t-1\t{line}" for n, line in rows]
        write_lines(tmp_path / name, blocks)
    score_it = ("score", "--ref", text / "test.de")
    message = "holds pieces of SentencePiece (`▁`), not text. Put the text.json"
    assert message in error_line(*score_it, "--generated", tmp_path / "pieces")
    assert "holds pieces of SentencePiece" in error_line(*score_it, "--hyp", run / "test.de")
    pipeline.copy(run, tmp_path)
    for name in ("pieces", "words"):
        command(*score_it, "--generated", tmp_path / name, "--json", tmp_path / "scores.json")
        metrics = json.loads((tmp_path / "scores.json").read_text())["scores"]
        assert [metric["value"] for metric in metrics] == pytest.approx([100, 100, 100])


def test_every_kind_of_space_separates_words(tmp_path: Path):
    """fairseq-preprocess splits at a no-break space, and so does what it is given."""
    path = write_corpus(tmp_path / "text") / "train.de"
    split_text(tmp_path / "text", tmp_path / "plain", size=40)
    text = path.read_text(encoding="utf-8").replace(" ", "\u00a0").replace("\n", "\r\n")
    path.write_text(text, encoding="utf-8", newline="")
    split_text(tmp_path / "text", tmp_path / "other", size=40)
    for name in ("codes", "train.de"):
        assert (tmp_path / "other" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


@pytest.fixture(scope="module", params=["0.1", "0.2"])
def codes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(1)
    words = ["".join(draw.choices("abc", k=draw.randint(1, 9))) for _ in range(400)]
    merges = io.StringIO()
    learn_bpe(io.StringIO(" ".join(words) + "\n"), merges, 60)
    lines = merges.getvalue().splitlines()
    header = f"#version: {request.param}"
    return write_lines(tmp_path_factory.mktemp("codes") / "codes", [header, *lines[1:]])


def test_the_pieces_are_those_of_subword_nmt(codes: Path):
    with codes.open(encoding="utf-8") as file:
        library = BPE(file)
    encode, draw = subwords.load("subword-nmt", [codes]).encode, random.Random(2)
    words = ["".join(draw.choices("abcd", k=draw.randint(1, 300))) for _ in range(60)]
    words += ["", "a", "a" * 101, "ab" * 70, "aab" * 51 + "é"]
    for word in words:
        assert encode(word) == " ".join(library.segment_tokens([word]))


def test_a_pair_of_a_lower_rank_waits_for_the_end_of_the_round(tmp_path: Path):
    """As in files that were written by hand or made of two."""
    codes = write_lines(tmp_path / "codes", ["#version: 0.2", "ab a", "a b"])
    with codes.open(encoding="utf-8") as file:
        expected = BPE(file).process_line("ababc")
    encode = subwords.load("subword-nmt", [codes]).encode
    assert encode("ababc") == expected == "ab@@ ab@@ c"


def test_a_word_of_many_letters_takes_no_longer_than_its_letters(codes: Path):
    encode = subwords.load("subword-nmt", [codes]).encode
    start = time.process_time()
    assert encode("abcab" * 20_000).replace("@@ ", "") == "abcab" * 20_000
    assert time.process_time() - start < 20  # subword-nmt takes hours
