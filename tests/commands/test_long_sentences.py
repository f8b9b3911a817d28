"""Sentences above a limit, and alignments of a model without any: one message says what and why."""

import re
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary, LanguagePairDataset, LMContextWindowDataset, MonolingualDataset
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from fairseq_ext.plugin.checks import training_options
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support.harness import contents, fairseq, hypotheses, refused
from tests.support.models import build, configuration

LIMIT = 7
TRAINING = (
    *("--arch", "linformer_tiny", "--linformer-max-len", LIMIT, "--linformer-k", 1),
    *("--optimizer", "adam", "--cpu", "--max-update", 2, "--batch-size", 100, "--no-progress-bar"),
)
SKIP = "--skip-invalid-size-inputs-valid-test"
ALIGNED = "label_smoothed_cross_entropy_with_alignment"


def remaining_indices(
    task, limits: tuple, sizes: list[tuple[int, int]], *, split: bool = True, **options
):
    words, (sources, targets) = task.target_dictionary, zip(*sizes, strict=True)
    dataset = LanguagePairDataset(sources, sources, words, targets, targets, words)
    task.datasets = {"train": dataset} if split else {}
    # fairseq's order, by length: the first sentence too long is not the first one in the corpus
    order = np.array(sorted(range(len(sizes)), key=lambda index: sizes[index]))
    return task.filter_indices_by_size(order, dataset, limits, **options).tolist()


SIZES = [(3, 3), (9, 4), (8, 30), (5, 21), (2, 2)]


def test_a_sentence_and_the_limits_are_named() -> None:
    _, task = build(["--arch", "gru_tiny"])
    with pytest.raises(DataError) as caught:
        remaining_indices(task, (8, 20), SIZES)
    assert (
        "sentence 2 has [9, 4] tokens, but at most (8, 20) are allowed, and 3 of 5 sentences are "
        "too long. Raise the limits (`--max-source-positions`"
    ) in str(caught.value)


def test_nothing_left_is_an_error_except_in_a_buffer() -> None:
    _, task = build(["--arch", "gru_tiny"])
    long = SIZES[1:4]
    with pytest.raises(DataError, match=r"sentence 1 has \[9, 4\] .* 3 of 3 sentences"):
        remaining_indices(task, (4, 1024), long, ignore_invalid_inputs=True)
    assert remaining_indices(task, (4, 1024), long, split=False, ignore_invalid_inputs=True) == []


def test_no_perplexity_of_blocks_that_are_all_too_long() -> None:
    """`fairseq-eval-lm --context-window` leaves out blocks of a split, but not all."""
    task = LanguageModelingTask(LanguageModelingConfig(tokens_per_sample=9), Dictionary())
    blocks = task.datasets["valid"] = MonolingualDataset([], [9, 9], task.dictionary)
    wrapped = LMContextWindowDataset(blocks, tokens_per_sample=9, context_window=2, pad_idx=1)
    with pytest.raises(
        DataError, match=r"2 sentences are too long\. Lower `--tokens-per-sample`, "
    ):
        task.filter_indices_by_size(np.arange(2), wrapped, 8, ignore_invalid_inputs=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--encoder-layers-to-keep", "0,2"], "train with `--encoder-layers 2`"),
        (["--decoder-layers-to-keep", "1"], "train with `--decoder-layers 1`"),
        (["--quant-noise-scalar", "0.5", "--cpu"], "`--quant-noise-scalar` needs a GPU"),
        (["--quant-noise-pq", "1"], "`--quant-noise-pq` must be at least 0 and below 1, but is 1"),
        (["--clip-norm", "nan"], "`--clip-norm` must be at least 0, but is nan"),
        (["--adam-betas", "1"], "`--adam-betas` must be two numbers"),
        (["--adam-betas", "(0.9,"], "below 1 such as '(0.9, 0.98)', but is (0.9,."),
        (["--adam-betas", "(0.9, 1.5)"], "below 1 such as '(0.9, 0.98)', but is (0.9, 1.5)"),
        (
            ["--lr-scheduler", "manual", "--update2lr", "{3: 0.1}"],
            "`--update2lr` must give a rate for each quoted number or range of updates",
        ),
        (
            ["--lr-scheduler", "manual", "--epoch2lr", "{'1-': 0.1}"],
            "`--epoch2lr` must give a rate for each quoted number or range of epochs",
        ),
        (
            ["--lr-scheduler", "manual", "--epoch2lr", "{'1': 'x'"],
            "but is {'1':'x'.",
        ),
        (["--adaptive-softmax-cutoff", "9"], "give `--criterion adaptive_loss`"),
        (["--ema-seed-model", "x", "--store-ema"], "by `--finetune-from-model`"),
    ],
)
def test_options_that_would_end_in_tracebacks_are_refused(options: list[str], message: str) -> None:
    needed = ["--arch", "transformer", "--optimizer", "adam", "--max-tokens", "100"]
    training_options.refuse(configuration(needed))
    with pytest.raises(ConfigError, match=re.escape(message)):
        training_options.refuse(configuration([*needed, *options]))


def test_alignments_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq_ext.gru.model import GRUAttentionModel

    model, task = build(["--arch", "gru_tiny"])
    needed = ["--optimizer", "adam", "--max-tokens", "100"]
    guided = ["--criterion", ALIGNED, "--load-alignments"]
    cfg = configuration(["--arch", "gru_tiny", *guided, *needed])
    cfg.generation.print_alignment = "hard"
    task.build_generator([model], cfg.generation)
    training_options.refuse(cfg)
    monkeypatch.setattr(GRUAttentionModel, "no_alignment", "it looks elsewhere", raising=False)
    with pytest.raises(ConfigError, match=r"`--print-alignment` .*: it looks elsewhere"):
        task.build_generator([model], cfg.generation)
    with pytest.raises(ConfigError, match=rf"`--criterion {ALIGNED}` .*: it looks elsewhere"):
        training_options.refuse(cfg)
    cfg.generation.print_alignment = None
    task.build_generator([model], cfg.generation)


@pytest.mark.parametrize("flags", [["--no-cross-attention"], ["--decoder-attention", "0"]])
def test_alignments_without_attention_are_refused(flags: list[str]) -> None:
    """fairseq's generator would end in an IndexError, and the engine print none."""
    arch = "transformer_tiny" if len(flags) == 1 else "lstm"
    model, task = build(["--arch", arch, *flags])
    generation = configuration(["--arch", "gru_tiny"]).generation
    generation.print_alignment = "hard"
    with pytest.raises(ConfigError, match=r"`--print-alignment` .* no attention over the source"):
        task.build_generator([model], generation)


def sizes(data: Path, split: str) -> list[int]:
    lines = (data.parent / "text" / f"{split}.src").read_text().splitlines()
    return [len(line.split()) + 1 for line in lines]


@pytest.fixture(scope="module")
def training(copy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A checkpoint of a model that takes 7 source tokens, and the log of its training."""
    folder = tmp_path_factory.mktemp("long") / "run"
    done = fairseq("train", copy_data, *TRAINING, SKIP, "--save-dir", folder)
    return folder / "checkpoint_last.pt", done.stdout + done.stderr


def test_train_warns_of_what_it_leaves_out(copy_data: Path, training: tuple[Path, str]) -> None:
    long = [size for size in sizes(copy_data, "train") if size > LIMIT]
    warning = f"{len(long)} samples have invalid sizes and will be skipped, max_positions=({LIMIT},"
    assert warning in training[1]


@pytest.mark.parametrize("command", ["generate", "validate", "train"])
def test_commands_name_the_sentence_and_the_smaller_limit(copy_data, training, command, tmp_path):
    if command == "train":
        options = (*TRAINING, "--save-dir", tmp_path / "save")
    else:
        options = ("--path", training[0], "--cpu", "--batch-size", 9)
    if command == "validate":
        options += ("--task", "translation")
    limit = LIMIT - 2  # that of the model is larger
    done = fairseq(command, copy_data, *options, "--max-source-positions", limit, ok=False)
    split = "test" if command == "generate" else "valid"
    number, size = next((n, s) for n, s in enumerate(sizes(copy_data, split), 1) if s > limit)
    refused(done, f"sentence {number} has [{size}, ", f" at most ({limit}, ", SKIP)
    assert "H-" not in done.stdout


def test_interactive_names_the_limit(copy_data: Path, training: tuple[Path, str]) -> None:
    lines = ["1 2", "3", "4 5 6", "1 2 3 4 5 6 7 8", "9"]
    command = ("interactive", copy_data, "--path", training[0], "--cpu", "--buffer-size", 2)
    done = fairseq(*command, ok=False, stdin="\n".join(lines) + "\n")
    refused(done, f" tokens, but at most ({LIMIT}, 1024) are allowed")
    done = fairseq(*command, SKIP, stdin="\n".join(lines) + "\n")
    assert len(hypotheses(done.stdout)) == 4
    shortened = ("--task", "translation_ext", "--truncate-source", "--max-source-positions", LIMIT)
    done = fairseq(*command, *shortened, stdin="\n".join(lines) + "\n")
    assert "S-3\t1 2 3 4 5 6\n" in done.stdout
    assert len(hypotheses(done.stdout)) == 5


def test_no_alignment_of_a_linformer(copy_data, training, tmp_path):
    options = ("--path", training[0], "--cpu", SKIP, "--results-path", tmp_path / "results")
    done = fairseq("generate", copy_data, *options, "--print-alignment", "hard", ok=False)
    refused(done, "`--print-alignment`", "mixtures of source tokens")
    assert "H-" not in done.stdout
    assert contents(tmp_path) == {}
