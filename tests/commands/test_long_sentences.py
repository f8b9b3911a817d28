"""Sentences above a limit, and alignments of a model without any: one message says why."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary, LanguagePairDataset, LMContextWindowDataset, MonolingualDataset
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from fairseq_ext.plugin.checks import training_options
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support.harness import fairseq, hypotheses, refused
from tests.support.models import build, configuration

LIMIT = 7
TRAINING = (
    *("--arch", "linformer_tiny", "--linformer-max-len", LIMIT, "--linformer-k", 1),
    *("--optimizer", "adam", "--cpu", "--max-update", 2, "--batch-size", 100, "--no-progress-bar"),
)
SKIP = "--skip-invalid-size-inputs-valid-test"
ALIGNED = "label_smoothed_cross_entropy_with_alignment"


def test_nothing_left_is_an_error_except_in_a_buffer() -> None:
    _, task = build(["--arch", "gru_tiny"])
    words, sizes, order = task.target_dictionary, [9, 8, 5], np.arange(3)
    task.datasets["train"] = LanguagePairDataset(sizes, sizes, words, sizes, sizes, words)
    task.datasets["buffer"] = buffer = LanguagePairDataset(sizes, sizes, words)
    fitting = task.filter_indices_by_size(order, buffer, (8, 8), ignore_invalid_inputs=True)
    assert fitting.tolist() == [1, 2]
    with pytest.raises(DataError, match="all 3 sentences of a split are too long"):
        task.filter_indices_by_size(order, buffer, (4, 4), ignore_invalid_inputs=True)
    del task.datasets["buffer"]
    assert not len(task.filter_indices_by_size(order, buffer, (4, 4), ignore_invalid_inputs=True))


def test_no_perplexity_of_blocks_that_are_all_too_long() -> None:
    """`fairseq-eval-lm --context-window` leaves out blocks of a split, but not all."""
    task = LanguageModelingTask(LanguageModelingConfig(tokens_per_sample=9), Dictionary())
    blocks = task.datasets["valid"] = MonolingualDataset([], [9, 9], task.dictionary)
    wrapped = LMContextWindowDataset(blocks, tokens_per_sample=9, context_window=2, pad_idx=1)
    with pytest.raises(DataError, match=r"all 2 sentences .* lower `--tokens-per-sample`"):
        task.filter_indices_by_size(np.arange(2), wrapped, 8, ignore_invalid_inputs=True)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--arch", "gru_tiny"], ""),
        (["--arch", "linformer_tiny"], "mixtures of source tokens"),
        # fairseq's generator would end in an IndexError, and the engine print none
        (["--arch", "transformer_tiny", "--no-cross-attention"], "no attention over the source"),
        (["--arch", "lstm", "--decoder-attention", "0"], "no attention over the source"),
    ],
)
def test_alignments_are_refused_with_the_reason(flags: list[str], reason: str) -> None:
    model, task = build(flags)
    generation = configuration(["--arch", "gru_tiny"]).generation
    task.build_generator([model], generation)
    generation.print_alignment = "hard"
    refusal = pytest.raises(ConfigError, match=f"`--print-alignment` .*{reason}")
    with refusal if reason else nullcontext():
        task.build_generator([model], generation)


def test_guided_alignment_of_a_linformer_is_refused() -> None:
    guided = ["--criterion", ALIGNED, "--load-alignments", "--optimizer", "adam"]
    guided += ["--max-tokens", "100", "--arch"]
    training_options.refuse(configuration([*guided, "gru_tiny"]))
    with pytest.raises(ConfigError, match=f"`--criterion {ALIGNED}` .*mixtures of source tokens"):
        training_options.refuse(configuration([*guided, "linformer_tiny"]))


@pytest.fixture(scope="module")
def training(copy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A checkpoint of a model that takes 7 source tokens, and the log of its training."""
    folder = tmp_path_factory.mktemp("long") / "run"
    done = fairseq("train", copy_data, *TRAINING, SKIP, "--save-dir", folder)
    return folder / "checkpoint_last.pt", done.stdout + done.stderr


def test_train_warns_of_what_it_leaves_out(copy_data: Path, training: tuple[Path, str]) -> None:
    lines = (copy_data.parent / "text" / "train.src").read_text().splitlines()
    long = [line for line in lines if len(line.split()) + 1 > LIMIT]
    warning = f"{len(long)} samples have invalid sizes and will be skipped, max_positions=({LIMIT},"
    assert warning in training[1]


@pytest.mark.parametrize("command", ["generate", "validate", "train"])
def test_commands_name_the_smaller_limit(copy_data, training, command, tmp_path):
    if command == "train":
        options = (*TRAINING, "--save-dir", tmp_path / "save")
    else:
        options = ("--path", training[0], "--cpu", "--batch-size", 9)
    if command == "validate":
        options += ("--task", "translation")
    limit = LIMIT - 2  # that of the model is larger
    done = fairseq(command, copy_data, *options, "--max-source-positions", limit, ok=False)
    refused(done, "Size of sample #", f" since max_positions=({limit}, ", SKIP)
    assert "H-" not in done.stdout


def test_interactive_names_the_limit(copy_data: Path, training: tuple[Path, str]) -> None:
    text = "1 2\n3\n4 5 6\n1 2 3 4 5 6 7 8\n9\n"
    command = ("interactive", copy_data, "--path", training[0], "--cpu", "--buffer-size", 2)
    done = fairseq(*command, ok=False, stdin=text)
    refused(done, f" since max_positions=({LIMIT}, 1024), skip this example with {SKIP}")
    done = fairseq(*command, SKIP, stdin=text)
    assert len(hypotheses(done.stdout)) == 4
    shortened = ("--task", "translation_ext", "--truncate-source", "--max-source-positions", LIMIT)
    done = fairseq(*command, *shortened, stdin=text)
    assert "S-3\t1 2 3 4 5 6\n" in done.stdout
    assert len(hypotheses(done.stdout)) == 5
