"""BMT through the real commands: stages across checkpoints, resume, averages, distillation."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from fairseq.tasks.translation import TranslationTask

from fairseq_ext.binary.distillation import load_teacher
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import command, error_line, fairseq
from tests.support.models import configuration, dictionary
from tests.support.trainings import TRAINING, load, same_state, training_state

TINY = (
    *("--arch", "bmt_tiny", "--encoder-layers", 1, "--decoder-layers", 1),
    *("--encoder-embed-dim", 32, "--decoder-embed-dim", 32, "--encoder-ffn-embed-dim", 48),
    *("--decoder-ffn-embed-dim", 48, "--bmt-preset", "bmt-6", "--stage-updates", "8,8,8"),
)
SCHEDULE = ("--lr-scheduler", "staged_cosine", "--warmup-updates", 2)
RUN = (*TRAINING, *TINY, *SCHEDULE, "--max-update", 24, "--save-interval-updates", 4)
LOSS = re.compile(r"valid on 'valid' subset \| loss ([\d.]+) .*num_updates (\d+)")


@pytest.fixture(scope="module")
def trained(copy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run through all three stages, and its log."""
    folder = tmp_path_factory.mktemp("bmt") / "whole"
    options = ("--save-dir", folder, "--log-file", folder / "train.log")
    return folder, fairseq("train", copy_data, *options, *RUN).stdout


def checkpoint(folder: Path, update: int) -> Path:
    """What was saved after an update, in the middle or at the end of an epoch."""
    return next(
        path
        for path in sorted(folder.glob("checkpoint[_0-9]*.pt"))
        if load(path)["optimizer_history"][-1]["num_updates"] == update
    )


def test_stages_are_entered_on_time_and_saved(trained: tuple[Path, str]) -> None:
    folder, log = trained
    for text in (log, (folder / "train.log").read_text()):
        entered = re.findall(r"update (\d+): (.*) from here on", text)
        assert entered == [("8", "binary weights"), ("16", "binary weights and activations")]
    states = {u: load(checkpoint(folder, u))["model"] for u in range(4, 25, 4)}
    saved = {u: state["binary_stage.current"] for u, state in states.items()}
    assert {u: int(stage) for u, stage in saved.items()} == {4: 0, 8: 0, 12: 1, 16: 1, 20: 2, 24: 2}


@pytest.mark.parametrize("update", [8, 16])
def test_a_checkpoint_on_a_boundary_validates_as_it_was_trained(trained, copy_data, update):
    folder, log = trained
    in_training = {int(u): loss for loss, u in LOSS.findall(log)}
    path = checkpoint(folder, update)
    options = ("--task", "translation", "--path", path, "--max-tokens", 400, "--cpu")
    output = fairseq("validate", copy_data, *options).stdout
    assert re.search(r"valid on 'valid' subset \| loss ([\d.]+)", output)[1] == in_training[update]


@pytest.mark.parametrize("update", [8, 12])
def test_resumes_exactly(trained, copy_data, tmp_path, update):
    folder, _ = trained
    (tmp_path / "killed").mkdir()
    shutil.copy(checkpoint(folder, update), tmp_path / "killed" / "checkpoint_last.pt")
    fairseq("train", copy_data, "--save-dir", tmp_path / "killed", *RUN)
    last = "checkpoint_last.pt"
    assert same_state(training_state(tmp_path / "killed" / last), training_state(folder / last))


def test_moments_of_the_optimizer_are_carried_over(trained: tuple[Path, str]) -> None:
    """The rate of update 8 is 0, so its weights stay; its moments go on from those before."""
    folder, _ = trained
    before, after = (load(checkpoint(folder, u)) for u in (8, 12))
    steps = [c["last_optimizer_state"]["state"][0]["step"] for c in (before, after)]
    assert [int(step) for step in steps] == [8, 12]
    first, later = (c["last_optimizer_state"]["state"][0]["exp_avg"] for c in (before, after))
    # Four updates with β1 = 0.9 keep 0.9⁴ of what was there; fresh moments would keep nothing.
    similarity = torch.nn.functional.cosine_similarity(first.flatten(), later.flatten(), dim=0)
    assert similarity > 0.3


def test_fine_tuning_stays_binary(trained, copy_data, tmp_path):
    folder, _ = trained
    options = (*TRAINING, *TINY, "--max-update", 2, "--save-dir", tmp_path / "tuned")
    source = checkpoint(folder, 24)
    log = fairseq("train", copy_data, *options, "--finetune-from-model", source).stdout
    message = "puts update 0 into stage `float`, but the checkpoint is in `binary weights and activ"
    assert log.count(message) == log.count("stays there") == 1
    tuned = load(tmp_path / "tuned" / "checkpoint_last.pt")["model"]
    assert int(tuned["binary_stage.current"]) == 2


def test_averages_are_of_one_stage(trained: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = trained
    paths = [checkpoint(folder, update) for update in (12, 20)]
    words = ("average", "-o", tmp_path / "average.pt", "--inputs")
    assert "the stage of the binarized training is " in error_line(*words, *paths)
    assert not (tmp_path / "average.pt").exists()
    command(*words, *(checkpoint(folder, update) for update in (20, 24)))
    assert int(load(tmp_path / "average.pt")["model"]["binary_stage.current"]) == 2


def test_distillation(trained: tuple[Path, str], copy_data: Path, tmp_path: Path) -> None:
    """The teacher leaves no trace in the student's checkpoint; validation is on references."""
    folder, _ = trained
    teacher = checkpoint(folder, 24)
    before = teacher.read_bytes()
    options_left = list(TRAINING)
    start = options_left.index("--criterion")
    del options_left[start : start + 4]
    options = (*options_left, *TINY, *SCHEDULE, "--max-update", 6)
    options = (*options, "--save-dir", tmp_path / "student")
    fairseq("train", copy_data, *options, "--criterion", "distillation", "--teacher", teacher)
    student = load(tmp_path / "student" / "checkpoint_last.pt")
    assert set(student["model"]) == set(load(teacher)["model"])
    assert student.get("criterion") is None
    assert teacher.read_bytes() == before
    path = tmp_path / "student" / "checkpoint_last.pt"
    output = fairseq("generate", copy_data, "--path", path, "--max-tokens", 400, "--cpu").stdout
    assert "BLEU4" in output


def test_distillation_needs_a_teacher_of_the_same_words(trained, tmp_path):
    words = dictionary(40)
    task = TranslationTask(configuration(["--arch", "bmt_tiny"]).task, words, words)
    path = checkpoint(trained[0], 24)
    with pytest.raises(ConfigError, match=r"another source dictionary: .* line \d+ is"):
        load_teacher(str(path), task)
    state = load(path)
    del state["extra_state"]["dictionaries"]
    torch.save(state, tmp_path / "old.pt")
    with pytest.raises(ConfigError, match="must be trained with the dictionaries of the data"):
        load_teacher(str(tmp_path / "old.pt"), task)
    with pytest.raises(ConfigError, match="must have a `--teacher`"):
        load_teacher("", task)


def test_a_stock_transformer_can_be_binarized_afterwards(copy_data: Path, tmp_path: Path) -> None:
    """Train in float with fairseq's own flags, go on with binary weights, translate."""
    sizes = ("--encoder-layers", 1, "--decoder-layers", 1)
    arch = ("--arch", "binary_transformer_tiny", *sizes)
    fairseq("train", copy_data, *TRAINING, *arch, "--max-update", 3, "--save-dir", tmp_path / "a")
    binary = (*arch, "--binary-weights", "qkv,out,ffn", "--max-update", 2)
    source = tmp_path / "a" / "checkpoint_last.pt"
    options = ("--save-dir", tmp_path / "b", "--finetune-from-model", source)
    log = fairseq("train", copy_data, *TRAINING, *binary, *options).stdout
    assert "update 0: binary weights from here on" in log
    path = tmp_path / "b" / "checkpoint_last.pt"
    output = fairseq("generate", copy_data, "--path", path, "--max-tokens", 400, "--cpu").stdout
    assert "BLEU4" in output
