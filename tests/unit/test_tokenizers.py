"""Scores know the language: tokenizers and test sets of sacrebleu, units of length."""

import functools
import os
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import sacrebleu
from fairseq.data import Dictionary

from fairseq_ext.decoding.mbr import build_utility
from fairseq_ext.evaluation import lengths, plots, score
from fairseq_ext.plugin.repairs import generation
from fairseq_ext.text import bleu_tokenizers
from fairseq_ext.utils.errors import ConfigError, DataError, EnvironmentProblem
from tests.support.harness import REPO, command, run, write_lines, write_sides

CHINESE = ["他昨天在图书馆看书。", "我们明天一起去公园散步吧。", "今天的天气非常好。"]
SLIGHTLY_OTHER = ["他昨天在图书馆读书。", "我们明天一起去公园玩吧。", "今天的天气很好。"]
JAPANESE = ["彼女は毎朝コーヒーを飲みます。", "駅まで歩いて十分かかります。"]
AMHARIC = ["የሰው፡ልጅ፡ሁሉ፡ሲወለድ፡ነጻና፡በክብርና፡በመብትም፡እኩልነት፡ያለው፡ነው።"]
TIBETAN = ["འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང༌།"]
ENGLISH = ["He read in the library yesterday.", "Let us walk tomorrow."]


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        *(("zh", "zh"), ("zh-CN", "zh"), ("zho_Hans", "zh"), ("ZH_tw", "zh"), ("th", "char")),
        *(("khm_Khmr", "char"), ("mya_Mymr", "char"), ("bod_Tibt", "char"), ("lao", "char")),
        *(("ja", "char"), ("jpn", "char"), ("ko", "char")),  # their libraries are not installed
        *(("en", "13a"), ("de", "13a"), (None, "13a"), ("", "13a")),
    ],
)
def test_each_language_has_a_tokenizer(language, tokenizer, monkeypatch):
    monkeypatch.setattr(bleu_tokenizers, "find_spec", lambda name: None)
    assert bleu_tokenizers.tokenizer_for(language) == tokenizer
    monkeypatch.setattr(bleu_tokenizers, "find_spec", lambda name: True)
    assert bleu_tokenizers.tokenizer_for("ja") == "ja-mecab"
    assert bleu_tokenizers.tokenizer_for("ko") == "ko-mecab"


def test_texts_without_spaces_are_recognized() -> None:
    for text in (CHINESE, JAPANESE, AMHARIC, TIBETAN):
        assert bleu_tokenizers.is_spaceless(text)
        assert score.count_units(text) == ([len(line) for line in text], "characters")
    assert bleu_tokenizers.is_spaceless(["先週 、 私はりんごを好きでした 。"])  # by Moses' rules
    spaced = (ENGLISH, ["他 昨天 在 图书馆 看书 。"], [], ["그는 어제 도서관에서 책을 읽었다."])
    assert not any(map(bleu_tokenizers.is_spaceless, spaced))
    assert score.count_units(ENGLISH) == ([6, 4], "words")


@pytest.mark.parametrize(
    ("tokenizer", "languages", "text", "expected"),
    [
        ("13a", [], CHINESE, "13a"),
        (None, [None, "zh"], CHINESE, "zh"),
        (None, [], ENGLISH, "13a"),
        (None, ["am"], AMHARIC, "char"),
        (None, [], AMHARIC, "char"),
        (None, ["am"], [AMHARIC[0].replace("፡", " ")], "13a"),
        (None, ["bo"], TIBETAN, "char"),
    ],
)
def test_a_tokenizer_is_chosen(tokenizer, languages, text, expected) -> None:
    assert score.choose_tokenizer(tokenizer, languages, text) == expected


def test_a_default_that_cannot_be_right_is_refused() -> None:
    for languages, text in (([None, ""], CHINESE), ([], TIBETAN)):
        with pytest.raises(DataError, match="written without spaces"):
            score.choose_tokenizer(None, languages, text)
    with pytest.raises(ConfigError, match="must be one of none, zh, 13a"):
        score.choose_tokenizer("moses", ["zh"], CHINESE)


def test_text_without_spaces_gets_the_advice_to_learn_pieces(tmp_path: Path) -> None:
    """Moses' rules put spaces around its punctuation, which makes no words of it."""
    japanese = ["先週、私はりんごを好きでした。"] * 2
    text = write_sides(tmp_path / "text", {"ja": japanese, "en": ENGLISH})
    options = ("--src", "ja", "--tgt", "en", "-o")
    tokens = tmp_path / "tokens"
    advice = "ja has no spaces between words"
    assert advice in command("prepare", "--data", text, *options, tokens, "--tokenize")
    assert advice in command("subwords", tokens, *options, tmp_path / "bpe")
    pieces = ("--kind", "tokenizers", "--size", 60)
    assert advice not in command("subwords", tokens, *options, tmp_path / "pieces", *pieces)


def test_a_tokenizer_that_is_not_installed_is_one_line() -> None:
    if bleu_tokenizers.tokenizer_for("ja") == "ja-mecab":
        pytest.skip("its libraries are installed")
    with pytest.raises(EnvironmentProblem, match=r"^`--tokenize ja-mecab` cannot be used: [^\n]*$"):
        score.build_bleu("ja-mecab")


def test_a_metric_without_its_tokenizer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacrebleu.metrics.BLEU", Mock(side_effect=OSError("no network")))
    with pytest.raises(EnvironmentProblem, match=r"^`--metric spbleu` cannot be used: no network"):
        score.build_bleu("flores200", "spbleu")


@pytest.mark.parametrize("name", ["score", "compare"])
@pytest.mark.parametrize("words", [["-l", "en-zh"], ["--tokenize", "zh"], []])
def test_commands_score_as_sacrebleu_does(name, words, tmp_path):
    """Without an option, the ending of the reference's name says the language."""
    ref = write_lines(tmp_path / "ref.zh", CHINESE)
    hyp = write_lines(tmp_path / "hyp.zh", SLIGHTLY_OTHER)
    options = ["--hyp", hyp] if name == "score" else ["--system", f"a=text:{hyp}"]
    shown = command(name, "--ref", ref, *options, *words)
    bleu = sacrebleu.corpus_bleu(SLIGHTLY_OTHER, [CHINESE], tokenize="zh").score
    assert bleu > 30
    assert re.search(rf"\b{bleu:.2f}\b", shown)
    assert "tok:zh" in shown


def test_mbr_counts_characters() -> None:
    matrix = build_utility("bleu", tokenizer="zh").matrix(CHINESE[:1] + SLIGHTLY_OTHER[:1], None)
    bleu = sacrebleu.sentence_bleu(CHINESE[0], [SLIGHTLY_OTHER[0]], tokenize="zh").score
    assert matrix[0, 1] == pytest.approx(bleu)
    assert bleu > 30


def test_lengths_are_in_characters(tmp_path: Path) -> None:
    output = [f"S-{i}\t{' '.join(line)}\nH-{i}\t-1\t{line}" for i, line in enumerate(CHINESE)]
    spaced = write_lines(tmp_path / "spaced", output)
    plain = write_lines(tmp_path / "plain", [part.replace(" ", "") for part in output])
    ref = write_lines(tmp_path / "ref", CHINESE)
    for path, unit in ((spaced, "words"), (plain, "characters")):
        scores = lengths.score_by_length({"a": path}, ref, [10], tokenizer="zh")
        assert (scores.unit, scores.rows()[0][0]) == (unit, f"source {unit}")
        assert [bucket.sentences for bucket in scores.buckets] == [2, 1]
        assert scores.whole["a"] == pytest.approx(100)


def test_pieces_of_a_sentence_without_spaces_stay_apart() -> None:
    pieces = ("▁彼女は", "毎朝", "コーヒーを", "飲みます", "</s>")
    assert plots._first_pieces(pieces) == [0, 1, 2, 3, 4]
    assert plots._first_pieces(("▁", "彼女は", "毎朝飲みます", "</s>")) == [0, 2, 3]
    assert plots._first_pieces(("▁He", "▁re", "ads", "</s>")) == [0, 1, 3]


def test_validation_scores_by_the_target_language() -> None:
    before = sacrebleu.corpus_bleu
    wrapped = generation.bleu_by_language.wrapper(
        lambda *_: sacrebleu.corpus_bleu(SLIGHTLY_OTHER, [CHINESE]).score
    )
    cases = (("zh", False, "zh"), ("en", False, "13a"), ("zh", True, "13a"))
    for language, tokenized, tokenizer in cases:
        options = SimpleNamespace(target_lang=language, eval_tokenized_bleu=tokenized)
        task = SimpleNamespace(cfg=options, tgt_dict=Dictionary())
        bleu = sacrebleu.corpus_bleu(SLIGHTLY_OTHER, [CHINESE], tokenize=tokenizer).score
        generator = SimpleNamespace(symbols_to_strip_from_output=set())
        assert wrapped(task, generator, None, None) == bleu
        assert sacrebleu.corpus_bleu is before


def test_a_set_is_scored_as_sacrebleu_scores_it(tmp_path: Path) -> None:
    lines = ["Der Hund schläft heute lange.", "Zwei Katzen sehen ihm dabei zu.", "Ende der Sache."]
    for field in ("src", "ref", "docid", "genre", "origlang"):
        write_lines(tmp_path / "sets" / "wmt14/full" / f"wmt14_full.en-de.{field}", lines)
    write_lines(tmp_path / "hyp", ["Der Hund schläft heute.", *lines[1:]])
    environment = {"SACREBLEU": str(tmp_path / "sets"), "PYTHONPATH": str(REPO), "NO_COLOR": "1"}
    shown = functools.partial(run, cwd=tmp_path, **environment)
    options = ("wmt14/full", "-l", "en-de")
    bleu = shown("sacrebleu", "-t", *options, "-i", "hyp", "-b", "-w", 2).stdout.strip()
    ours = shown("fairseq-ext", "score", "--hyp", "hyp", "--ref", *options).stdout
    assert ours.split()[:2] == ["BLEU", bleu]
    compare = ("fairseq-ext", "compare", "--system", "a=text:hyp", "--samples", 100)
    assert f"a       {bleu} ± " in shown(*compare, "--ref", *options).stdout


def test_a_file_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(Path("wmt14"), ["a"])
    for path in (Path("wmt14"), Path("no/such.de")):  # the second is read, and named
        assert score.test_set_reference(path, None) == path


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
        score.test_set_reference(Path(name), pair)


def test_a_set_that_cannot_be_had_is_one_line(tmp_path, monkeypatch):
    from sacrebleu import utils

    monkeypatch.setattr(utils, "get_reference_files", Mock(side_effect=SystemExit(1)))
    with pytest.raises(DataError, match=r"cannot get the test set `wmt17` \(SystemExit: 1\); try"):
        score.test_set_reference(Path("wmt17"), "en-de")
    several = [os.fspath(tmp_path / name) for name in ("a", "b")]
    monkeypatch.setattr(utils, "get_reference_files", lambda *_: several)
    with pytest.raises(DataError, match="has 2 references for en-de"):
        score.test_set_reference(Path("wmt17"), "en-de")
