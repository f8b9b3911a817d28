"""fairseq's own flags keep their meaning for our architectures, or are refused by name.

Every check runs the real commands on a small, half-trained model, for which beam sizes, penalties
and dropout make a difference, and compares what they print with a plain forward pass or with
another run that must say the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.search import DiverseBeamSearch

from fairseq_ext.evaluation.outputs import Hypothesis, Sentence, read_generated
from fairseq_ext.plugin.checks import commands
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import binarize, digits_corpus, fairseq
from tests.support.trainings import load

TEST_LINES, VALID_LINES = 20, 50
UPDATES, HALF_WAY = 110, 80
BUCKETS = "--num-batch-buckets 2 --batch-size 8"

TRAINING = (
    *("--arch", "gru_tiny", "--cpu", "--no-progress-bar", "--num-workers", 0, "--log-interval", 1),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1),
)


@dataclass
class Trained:
    """A corpus whose odd target words end in ``@@``, and a model half-trained on it."""

    text: Path
    data: Path
    folder: Path

    @property
    def last(self) -> Path:
        return self.folder / "checkpoint_last.pt"

    @property
    def earlier(self) -> Path:
        return next(self.folder.glob(f"checkpoint_*_{HALF_WAY}.pt"))

    def output(self, *flags: object, path: object = None) -> str:
        path = path or self.last
        done = fairseq("generate", self.data, "--path", path, "--cpu", *flags)
        return done.stdout + done.stderr

    def parse(self, output: str) -> list[Sentence]:
        path = self.folder.with_name("output")
        path.write_text(output, encoding="utf-8")
        return read_generated(path)

    def generate(self, *flags: object, path: object = None) -> list[Sentence]:
        return self.parse(self.output(*flags, path=path))

    @cached_property
    def plain(self) -> list[Sentence]:
        """Three hypotheses of beam 5 with soft alignments, in batches of mixed lengths."""
        return self.generate("--batch-size", 7, "--nbest", 3, "--print-alignment", "soft")

    @cached_property
    def twice(self) -> list[Sentence]:
        """The same, of an ensemble of one model twice, with hard alignments."""
        path = f"{self.last}:{self.last}"
        return self.generate("--nbest", 3, "--print-alignment", path=path)


def mark_odd(words: list[str]) -> list[str]:
    return [word + "@@" if int(word) % 2 else word for word in words]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("stock_flags")
    text = digits_corpus(folder / "text", mark_odd, train=1000, valid=VALID_LINES, test=TEST_LINES)
    data = binarize(text, folder / "bin", "--joined-dictionary")
    flags = (*TRAINING, "--optimizer", "adam", "--lr", 0.01, "--max-tokens", 500, "--dropout", 0.2)
    updates = ("--max-update", UPDATES, "--save-interval-updates", HALF_WAY)
    saved = ("--no-epoch-checkpoints", "--save-dir", folder / "model")
    fairseq("train", data, *flags, *updates, *saved)
    return Trained(text, data, folder / "model")


Twin = Callable[..., torch.Tensor]


@pytest.fixture(scope="module")
def forward(trained: Trained) -> Twin:
    """Probabilities ``[T, V]`` of a full forward pass of one or several checkpoints."""
    from fairseq import checkpoint_utils

    loaded = {}
    for path in (trained.last, trained.earlier):
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path)], arg_overrides={"data": str(trained.data)}
        )
        loaded[path] = models[0].eval()

    @torch.no_grad()
    def probabilities(source: str, prefix: list[int], *paths: Path) -> torch.Tensor:
        words = task.source_dictionary.encode_line(source, add_if_not_exist=False).long()
        previous = torch.tensor([[task.target_dictionary.eos(), *prefix]])
        outputs = [
            loaded[path](words.unsqueeze(0), torch.tensor([len(words)]), previous)[0]
            for path in paths or (trained.last,)
        ]
        return torch.stack([output[0].softmax(-1) for output in outputs]).mean(0)

    probabilities.dictionary = task.target_dictionary
    return probabilities


def bits(forward: Twin, source: str, target: str, *paths: Path) -> list[float]:
    """``log2 p`` of each word of the target and of its end."""
    dictionary = forward.dictionary
    words = [dictionary.index(word) for word in target.split()]
    outputs = forward(source, words, *paths)
    index = torch.tensor([*words, dictionary.eos()]).unsqueeze(1)
    return outputs.gather(1, index).squeeze(1).log2().tolist()


def pairs(left: list[Sentence], right: list[Sentence]) -> Iterator[tuple[Hypothesis, Hypothesis]]:
    """Each hypothesis on the left with the same one on the right."""
    for ours, theirs in zip(left, right, strict=True):
        yield from zip(ours.hypotheses, theirs.hypotheses, strict=True)


def assert_same(left: list[Sentence], right: list[Sentence]) -> None:
    """Assert equal texts, and equal scores but for rounding (both print four digits)."""
    for ours, theirs in pairs(left, right):
        assert ours.text == theirs.text
        assert ours.score == pytest.approx(theirs.score, abs=1e-4)
        assert ours.token_scores == pytest.approx(theirs.token_scores, abs=2e-4)


# Generation
def test_beam_search_scores_are_those_of_a_full_forward(trained: Trained, forward: Twin) -> None:
    assert [s.source for s in trained.plain] == (trained.text / "test.src").read_text().splitlines()
    for sentence in trained.plain:
        assert len({hypothesis.text for hypothesis in sentence.hypotheses}) == 3
        scores = [hypothesis.score for hypothesis in sentence.hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in sentence.hypotheses:
            expected = bits(forward, sentence.source, hypothesis.text)
            assert hypothesis.token_scores == pytest.approx(expected, abs=1e-3)
            assert hypothesis.score == pytest.approx(sum(expected) / len(expected), abs=1e-3)


def test_batches_and_padding_change_nothing(trained: Trained) -> None:
    """fairseq's `--left-pad-source` takes no value and, its default being true, means false."""
    output = trained.output(
        *("--task", "translation", "--left-pad-source", "--required-seq-len-multiple", 8),
        *("--num-batch-buckets", 3, "--max-tokens", 80),  # buckets need --max-tokens
        *("--nbest", 3, "--print-alignment", "soft"),
    )
    assert "'left_pad_source': False" in output
    assert "bucketing source lengths" in output
    sentences = trained.parse(output)
    assert_same(sentences, trained.plain)
    for ours, theirs in pairs(sentences, trained.plain):
        np.testing.assert_allclose(ours.soft, theirs.soft, rtol=0, atol=1e-5)


def test_hard_alignments_and_an_ensemble_of_one_model_twice(trained: Trained) -> None:
    assert_same(trained.twice, trained.plain)
    for aligned, weighted in pairs(trained.twice, trained.plain):
        words = np.array(weighted.soft)[:-1, :-1]  # without the end of either side
        for t, pair in enumerate(aligned.hard):
            source, target = map(int, pair.split("-"))
            assert target == t
            assert words[t, source] >= words[t].max() - 1e-5
        assert len(aligned.hard) == len(words)


@pytest.mark.parametrize("models", [["last"], ["last", "earlier"]])
def test_score_reference(trained: Trained, forward: Twin, models: list[str]) -> None:
    """An ensemble averages probabilities."""
    paths = [getattr(trained, name) for name in models]
    path = ":".join(map(str, paths))
    scored = trained.generate("--score-reference", "--batch-size", 7, path=path)
    references = (trained.text / "test.tgt").read_text().splitlines()
    assert [sentence.best.text for sentence in scored] == references
    for sentence in scored:
        expected = bits(forward, sentence.source, sentence.target, *paths)
        assert sentence.best.token_scores == pytest.approx(expected, abs=1e-3)
        assert sentence.best.score == pytest.approx(sum(expected) / len(expected), abs=1e-3)


def test_diverse_groups_of_any_sentences() -> None:
    """fairseq's own steps, for sentences 0 to 3 of which one ends first, under other numbers."""
    words, draw = Dictionary(), torch.Generator().manual_seed(1)
    ours, theirs = (DiverseBeamSearch(words, 2, 0.1, 0.9) for _ in range(2))
    names = torch.tensor([41, 7, 0, 160])
    rows = torch.arange(4)
    for number in range(4):
        if number == 2:
            rows = rows[[0, 2, 3]]
        lprobs = torch.rand(len(rows), 4, len(words), generator=draw).log()
        scores = torch.rand(len(rows), 4, number, generator=draw).log()
        actual = ours.step(number, lprobs.clone(), scores, None, names[rows])
        expected = DiverseBeamSearch.step.__wrapped__(theirs, number, lprobs, scores, None, rows)
        for tensor, other in zip(actual, expected, strict=True):
            assert tensor.equal(other)
    with pytest.raises(IndexError):
        DiverseBeamSearch.step.__wrapped__(theirs, number, lprobs, scores, None, names[rows])


def test_length_penalty_and_joined_words(trained: Trained) -> None:
    sentences = trained.generate("--lenpen", 0, "--nbest", 5, "--remove-bpe")
    assert [sentence.target for sentence in sentences] == [
        (sentence.target + " ").replace("@@ ", "").rstrip() for sentence in trained.plain
    ]
    for sentence in sentences:
        scores = [hypothesis.score for hypothesis in sentence.hypotheses]
        totals = [sum(hypothesis.token_scores) for hypothesis in sentence.hypotheses]
        assert scores == pytest.approx(totals, abs=1e-3)  # a sum, not a mean
        assert scores == sorted(scores, reverse=True)
        assert not any("@@" in hypothesis.text for hypothesis in sentence.hypotheses)


def test_interactive_equals_generate(trained: Trained) -> None:
    done = fairseq(
        *("interactive", trained.data, "--path", trained.last, "--cpu", "--nbest", 3),
        *("--buffer-size", 30, "--batch-size", 7, "--print-alignment"),
        stdin=(trained.text / "test.src").read_text(),
    )
    sentences = trained.parse(done.stdout)
    assert [s.source for s in sentences] == [s.source for s in trained.plain]
    assert_same(sentences, trained.plain)
    assert all(ours.hard == theirs.hard for ours, theirs in pairs(sentences, trained.twice))


def test_one_update_whatever_the_batches(trained: Trained, tmp_path: Path) -> None:
    """All sentences in one batch, or in many with other padding: the same weights."""
    step = (
        *(*TRAINING, "--no-epoch-checkpoints", "--dropout", 0, "--max-epoch", 1),
        *("--train-subset", "valid", "--valid-subset", "test", "--optimizer", "sgd", "--lr", 1),
        *("--required-batch-size-multiple", 1, "--share-decoder-input-output-embed"),
    )
    words = ("train", trained.data, *step, "--save-dir")
    fairseq(*words, tmp_path / "one", "--batch-size", VALID_LINES)
    several = fairseq(
        *(*words, tmp_path / "many", "--batch-size", 9, "--update-freq", 64),
        *("--num-batch-buckets", 2, "--required-seq-len-multiple", 8, "--max-tokens", 100),
        *("--task", "translation", "--left-pad-source"),
    )
    assert "num_updates 1 " in several.stdout + several.stderr
    single, several = (
        load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("one", "many")
    )
    for name, weight in single.items():
        torch.testing.assert_close(several[name], weight, rtol=0, atol=1e-6, msg=name)
    tied = single["decoder.output_projection.weight"]
    assert tied.equal(single["decoder.embed_tokens.weight"])
    assert not tied.equal(single["encoder.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("command", "flags", "fault"),
    [
        ("generate", "--score-reference --print-alignment soft", "t` does not go with `--score-"),
        ("generate", "--print-step", "`--print-step` is for models that refine a translation"),
        ("interactive", "--print-alignment soft", "`--print-alignment soft` is for"),
        ("generate", BUCKETS, "`--num-batch-buckets` must have `--max-tokens`"),
        ("train", f"{BUCKETS} --optimizer adam", "`--num-batch-buckets` must have `--max-tokens`"),
    ],
)
def test_what_fairseq_cannot_do_is_refused_by_name(command: str, flags: str, fault: str) -> None:
    words = ["bin", "--task", "translation", *flags.split(), "--path", "model.pt"]
    parser = options.get_generation_parser(interactive=command == "interactive")
    if command == "train":
        words, parser = [*words[:-2], "--arch", "gru_tiny"], options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    with pytest.raises(ConfigError, match=fault):
        commands._refuse_broken(cfg, f"fairseq_cli.{command}")
