"""Minimum Bayes risk decoding against sacrebleu pair by pair, and through the real command."""

import json
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
import torch

from fairseq_ext.decoding import mbr
from fairseq_ext.decoding.mbr import Candidates, build_utility
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support.generated import write_generated
from tests.support.harness import command, ended, leaves_no_trace, write_lines

JOINED = Postprocessor.by_language(None)
NAIVE = {
    "chrf": lambda h, y: sacrebleu.sentence_chrf(h, [y]).score,
    "bleu": lambda h, y: sacrebleu.sentence_bleu(h, [y]).score,
}
WORDS = [
    *("the", "a", "cat", "dog,", "sat", "on", "mat.", "U.S.", "3.5", "it's", "naïve", "—", "“so”"),
    *("(", "he", ")", "ein", "Straße", "猫", "said"),
]


def sentences(count: int, seed: int, longest: int = 12) -> list[str]:
    """Distinct sentences of 0 to ``longest`` words, with odd ones among them."""
    generator = random.Random(seed)
    texts = ["", " ", "a", "ab", "....", "a a a a a a", "cat  cat\u00a0cat "]
    texts += [
        " ".join(generator.choices(WORDS, k=generator.randint(0, longest))) for _ in range(count)
    ]
    return list(dict.fromkeys(texts))


@pytest.mark.parametrize("name", NAIVE)
def test_scores_and_signatures_are_sacrebleus(name: str) -> None:
    candidates, utility = sentences(30, seed=1), build_utility(name)
    expected = [[NAIVE[name](h, y) for y in candidates] for h in candidates]
    assert np.abs(utility.matrix(candidates) - np.array(expected)).max() < 1e-9
    metric = sacrebleu.CHRF() if name == "chrf" else sacrebleu.BLEU(effective_order=True)
    metric.sentence_score("a", ["a"])
    assert str(metric.get_signature()) in utility.signature


@pytest.mark.parametrize("name", NAIVE)
@pytest.mark.parametrize("seed", range(5))
def test_decision_is_the_papers_argmax(name: str, seed: int) -> None:
    generator = random.Random(seed)
    texts = generator.choices(sentences(9, seed), k=16)  # with repetitions
    decision = mbr.decide(Candidates(3, None, tuple(texts)), build_utility(name), range(16))
    means = [sum(NAIVE[name](h, y) for y in texts) / 16 for h in texts]
    assert decision.index == 3
    assert decision.expected_utility == pytest.approx(max(means), abs=1e-9)
    assert means[decision.candidate] == pytest.approx(max(means), abs=1e-9)
    assert texts[decision.candidate] == decision.text
    assert texts.index(decision.text) == decision.candidate
    assert decision.mean_utility == pytest.approx(sum(means) / 16, abs=1e-9)
    assert decision.distinct == len(set(texts))


def test_repetition_counts_and_the_first_of_equals_wins() -> None:
    chrf = build_utility("chrf")
    split = Candidates(0, None, ("abc", "xyz"))
    assert mbr.decide(split, chrf, range(2)).text == "abc"
    assert mbr.decide(Candidates(0, None, ("abc", "xyz", "xyz")), chrf, range(3)).text == "xyz"
    empty = mbr.decide(Candidates(0, None, ("", "", "abc")), chrf, range(3))
    assert empty.text == "abc"  # nothing matches an empty reference, not even itself
    assert mbr.decide(Candidates(0, None, ("", "")), chrf, range(2)).expected_utility == 0


def test_subsets_are_random_nested_and_of_the_sentence_alone() -> None:
    texts = tuple(str(i) for i in range(64))
    sentence, other = (Candidates(index, None, texts) for index in (0, 1))
    draws = {size: mbr.random_subset(sentence, size, seed=1) for size in (4, 16, 64)}
    assert set(draws[4]) < set(draws[16]) < set(draws[64]) == set(range(64))
    assert list(draws[16]) == sorted(draws[16])
    assert draws[16] == mbr.random_subset(sentence, 16, seed=1)
    assert draws[16] != mbr.random_subset(sentence, 16, seed=2)
    assert draws[16] != mbr.random_subset(other, 16, seed=1)
    first = Counter(
        place for seed in range(400) for place in mbr.random_subset(sentence, 16, seed=seed)
    )
    assert min(first.values()) > 60  # every place is drawn about 100 times
    assert max(first.values()) < 140


def test_samples_are_sorted_joined_and_empty_ones_kept(tmp_path: Path) -> None:
    first_file = write_generated(tmp_path / "1.txt", [["a", "b"], ["c@@ d", ""]])
    second_file = write_generated(tmp_path / "2.txt", [["x", ""], ["y", "z"]])
    candidates = mbr.read_candidates([first_file, second_file], 4, JOINED, reads_source=True)
    expected = [(0, "source 0", ("a", "b", "x", "")), (1, "source 1", ("cd", "", "y", "z"))]
    assert [(c.index, c.source, c.texts) for c in candidates] == expected
    text = write_lines(tmp_path / "raw", ["Eins.", "Zwei."])
    candidates = mbr.read_candidates([first_file], 2, JOINED, source=text, reads_source=True)
    assert [c.source for c in candidates] == ["Eins.", "Zwei."]
    assert [c.source for c in mbr.read_candidates([first_file], 2, JOINED)] == [None, None]


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    good = write_generated(tmp_path / "good", [["a", "b"], ["c", "d"]])
    uneven = write_generated(tmp_path / "few", [["a", "b"], ["c"]])
    short = write_generated(tmp_path / "short", [["e", "f"]])
    other = write_generated(tmp_path / "other", [["e", "f"], ["g", "h"]], ["Eins", "Zwei"])
    for paths, count, message in (
        ([uneven], 2, "Sentence 1 has 1 candidates instead of 2"),
        ([good], 4, "Sentence 0 has 2 candidates instead of 4"),
        ([good, good], 4, r"same samples as .*another `--seed`"),
        ([good, short], 4, r"short` and .*good` have different sources"),
        ([good, other], 4, "have different sources; all files must be"),
    ):
        with pytest.raises(DataError, match=message):
            mbr.read_candidates(paths, count, JOINED)
    text = write_lines(tmp_path / "raw", ["Eins."])
    with pytest.raises(DataError, match=r"has 1 lines, but there are 2 sentences"):
        mbr.read_candidates([good], 2, JOINED, source=text, reads_source=True)


class _Metric:
    """What ``mbrs.metrics.Metric`` promises, for a metric that counts common words."""

    HIGHER_IS_BETTER = True

    @dataclass
    class Config:
        bonus: int = 0
        label: str = ""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg

    def pairwise_scores(self, hypotheses, references, source=None) -> torch.Tensor:
        rows = [
            [len({*h.split()} & {*y.split(), source}) + self.cfg.bonus for y in references]
            for h in hypotheses
        ]
        return torch.tensor(rows, dtype=torch.float32)


class _Error(_Metric):
    HIGHER_IS_BETTER = False


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that looks like mbrs, which the tests never install."""
    classes = {"common": _Metric, "bleurt": _Metric, "error": _Error, "kiwi": object}
    metrics = SimpleNamespace(Metric=_Metric, get_metric=classes.__getitem__)
    monkeypatch.setitem(sys.modules, "mbrs", SimpleNamespace(metrics=metrics))
    monkeypatch.setitem(sys.modules, "mbrs.metrics", metrics)


@pytest.mark.usefixtures("library")
def test_metrics_of_mbrs_see_candidates_and_source() -> None:
    candidates = ["a b", "a c", "src"]
    plain = build_utility("mbrs:common")
    assert plain.matrix(candidates, "src").tolist() == [[2, 1, 0], [1, 2, 0], [1, 1, 1]]
    configured = build_utility("mbrs:common", {"bonus": "3", "label": "x/y"})
    assert configured.metric.cfg.label == "x/y"
    assert (configured.matrix(candidates, None) - plain.matrix(candidates, None) == 3).all()
    error = build_utility("mbrs:error")
    assert (error.matrix(candidates, None) == -plain.matrix(candidates, None)).all()


@pytest.mark.usefixtures("library")
def test_metrics_of_mbrs_read_the_source_as_text(tmp_path):
    """Unknown ones may read it, so that what is no text is refused; ``bleurt`` does not."""
    pieces = write_generated(tmp_path / "pieces", [["x", "Hund"]], ["Hu@@ nd"])
    unknown = write_generated(tmp_path / "unknown", [["x", "Hund"]], ["<unk>"])
    text, best = write_lines(tmp_path / "text", ["Hund"]), tmp_path / "best"

    def run_mbr(path: Path, metric: str, *extra: object) -> str:
        flags = ("--num-candidates", 2, "--utility", f"mbrs:{metric}", "--remove-bpe", "-o", best)
        best.unlink(missing_ok=True)
        *_, errors = ended("mbr", path, *flags, *extra)
        return best.read_text() if best.exists() else errors

    assert run_mbr(pieces, "common") == run_mbr(unknown, "common", "--source", text) == "Hund\n"
    assert "has words that the dictionary lacks (`<unk>`). Give" in run_mbr(unknown, "common")
    assert run_mbr(pieces, "bleurt") == run_mbr(unknown, "bleurt") == "x\n"
    message = "`--source` does not go with `--utility mbrs:bleurt`, which ignores it."
    assert message in run_mbr(pieces, "bleurt", "--source", text)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mbrs:nothing", {}, "mbrs has no such metric"),
        ("mbrs:kiwi", {}, "uses no reference"),
        ("mbrs:common", {"size": "1"}, "`--mbrs-option` does not fit `common`: .*size"),
        ("chrf", {"size": "1"}, "`--mbrs-option` goes with `--utility mbrs:METRIC`"),
        ("ter", {}, "`--utility` must be chrf, bleu, comet:MODEL or mbrs:METRIC, but is `ter`"),
    ],
)
def test_utilities_that_do_not_exist(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_utility(name, options)


def test_without_mbrs_the_message_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mbrs", None)
    with pytest.raises(ConfigError, match=r"needs the library mbrs.*fairseq-ext\[mbr\]"):
        build_utility("mbrs:bleurt")


def test_command_writes_text_and_expected_utilities(tmp_path: Path) -> None:
    samples = [sentences(8, seed=seed)[2:10] for seed in range(3)]
    path = write_generated(tmp_path / "samples", samples)
    out, details = tmp_path / "best", tmp_path / "best.json"
    words = ("mbr", path, "--num-candidates", 8, "--utility", "bleu", "-o", out)
    assert "utility of the chosen one" in command(*words, "--json", details)
    report = json.loads(details.read_text())
    assert report["num_candidates"] == report["candidates_of"] == 8
    translations = out.read_text().split("\n")[:-1]
    for index, text in enumerate(translations):
        means = {h: sum(NAIVE["bleu"](h, y) for y in samples[index]) / 8 for h in samples[index]}
        assert means[text] == pytest.approx(max(means.values()), abs=1e-9)
        decision = report["sentences"][index]
        assert (decision["index"], decision["text"]) == (index, text)
        assert decision["expected_utility"] == pytest.approx(means[text], abs=1e-9)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--num-candidates", 0), "`--num-candidates` must be at least 1, but is 0 instead"),
        (("--num-candidates", 2, "--candidates-of", 1), "`--candidates-of` must be at least"),
        (("--num-candidates", 2, "--seed", -1), "`--seed` must be at least 0, but is -1 instead"),
        (("--num-candidates", 2, "--seed", 3), "`--seed` goes with `--candidates-of`, which is"),
        (("--num-candidates", 2, "--tokenize", "char"), "goes with `--utility bleu`, which is"),
        (("--num-candidates", 2, "--mbrs-option", "x"), "`--mbrs-option` must be KEY=VALUE"),
    ],
)
def test_command_refuses_with_one_line_and_writes_nothing(flags, message, tmp_path: Path) -> None:
    path = write_generated(tmp_path / "samples", [["a", "b"]])
    leaves_no_trace(tmp_path, message, "mbr", path, *flags, "-o", tmp_path / "out")
