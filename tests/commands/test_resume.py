"""A killed run continues to the very bits of an uninterrupted one; a finished one is left alone."""

import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from fairseq.data import ListDataset
from fairseq.data.iterators import EpochBatchIterator

from tests.support.harness import names, refused, write_lines
from tests.support.trainings import (
    ARCHITECTURES,
    STOCK,
    load,
    plugin_without,
    same_state,
    train,
    training_state,
)

LAST = "checkpoint_last.pt"
RUN = ("--max-update", 26, "--save-interval-updates", 7)


def resumed(checkpoint: Path, folder: Path, data: Path, *options: object, **how: Path) -> Path:
    """The folder of a run killed right after it had saved ``checkpoint``, then resumed."""
    folder.mkdir()
    shutil.copy(checkpoint, folder / LAST)
    train(data, folder, *options, **how)
    return folder


def both_ends(
    data: Path, folder: Path, checkpoint: str, fix: str, *options: object
) -> tuple[Path, Path]:
    """A run that a killed one equals, and one that was killed and resumed without the fix."""
    complete = folder / "whole"
    train(data, complete, *options)
    killed = resumed(complete / checkpoint, folder / "killed", data, *options)
    assert same_state(training_state(killed / LAST), training_state(complete / LAST))
    without = {"plugin": plugin_without(folder, fix)}
    return complete, resumed(complete / checkpoint, folder / "stock", data, *options, **without)


def fingerprint(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.fixture(scope="module", params=["lstm"])
def uninterrupted(request, copy_data, tmp_path_factory):
    """A run of 26 updates, ending in its third epoch; gives its folder, data and options."""
    folder = tmp_path_factory.mktemp("resume") / "whole"
    options = (*ARCHITECTURES[request.param], *RUN, "--dropout", 0.1)
    train(copy_data, folder, *options)
    return folder, copy_data, options


OTHERS = sorted({*ARCHITECTURES} - {*STOCK})  # of "transformer" the test of bf16 shows it


@pytest.mark.parametrize(
    ("uninterrupted", "moment"),
    [
        *(("lstm", f"checkpoint{moment}.pt") for moment in ("_1_7", "_2_14", "2")),
        *((architecture, "checkpoint_2_14.pt") for architecture in OTHERS),
    ],
    indirect=["uninterrupted"],
)
def test_resumes_exactly_in_every_epoch(uninterrupted, moment, tmp_path):
    complete, data, options = uninterrupted
    killed = resumed(complete / moment, tmp_path / "killed", data, *options)
    for name in ("checkpoint_3_21.pt", LAST):
        assert same_state(training_state(killed / name), training_state(complete / name)), name


def test_without_the_fix_a_later_epoch_differs(uninterrupted, tmp_path):
    complete, data, options = uninterrupted
    how = {"plugin": plugin_without(tmp_path, "batches after resume")}
    killed = resumed(complete / "checkpoint_2_14.pt", tmp_path / "killed", data, *options, **how)
    assert not same_state(load(killed / LAST)["model"], load(complete / LAST)["model"])


def test_bf16_resumes_exactly(copy_data, tmp_path):
    """bfloat16 rounds its weights: without its float32 master copy a resumed run differs."""
    options = (*ARCHITECTURES["transformer"], *RUN, "--bf16")
    fix = "half precision after resume"
    complete, stock = both_ends(copy_data, tmp_path, "checkpoint_3_21.pt", fix, *options)
    assert not same_state(load(stock / LAST)["model"], load(complete / LAST)["model"])


STANDSTILL = (*ARCHITECTURES["lstm"], "--lr", 1e-9)
"""Validation never improves at this learning rate."""


def test_early_stopping_continues_to_count(copy_data, tmp_path):
    options = (*STANDSTILL, "--patience", 2, "--save-interval-updates", 3, "--max-update", 18)
    fix = "validation after resume"
    complete, stock = both_ends(copy_data, tmp_path, "checkpoint_1_6.pt", fix, *options)
    assert training_state(complete / LAST)["updates"] == 9
    assert training_state(stock / LAST)["updates"] > 9
    before = fingerprint(complete)
    log = train(copy_data, complete, *options).stdout
    assert "nothing to do: this run has finished (--patience 2)" in log
    assert fingerprint(complete) == before


def test_plateau_scheduler_continues_to_count(copy_data, tmp_path):
    """Killed at the end of an epoch, before the scheduler saw that epoch's validation loss."""
    options = (*STANDSTILL, "--max-epoch", 4, "--batch-size", 100, "--max-tokens", 9999)
    options = (*options, "--lr-scheduler", "reduce_lr_on_plateau", "--lr-patience", 1, "--lr", 1e-6)
    fix = "validation after resume"
    complete, stock = both_ends(copy_data, tmp_path, "checkpoint2.pt", fix, *options)
    expected = training_state(complete / LAST)
    assert expected["optimizer"]["param_groups"][0]["lr"] < 1e-6
    assert not same_state(training_state(stock / LAST)["scheduler"], expected["scheduler"])


def test_another_metric_begins_anew(copy_data, tmp_path):
    """A perplexity is higher than any loss: it must not be compared with the best loss."""
    options = (*ARCHITECTURES["lstm"], "--patience", 1)
    train(copy_data, tmp_path, *options, "--max-epoch", 1)
    options = (*options, "--max-epoch", 2, "--best-checkpoint-metric", "ppl")
    refused(train(copy_data, tmp_path, *options, ok=False), "was the lowest loss, but is now the")
    train(copy_data, tmp_path, *options, "--reset-meters")
    best, last = (training_state(tmp_path / name) for name in ("checkpoint_best.pt", LAST))
    assert same_state(best, last)
    assert best["best"] == best["val_loss"] == best["early_stopping"]["best"] > 2
    assert best["early_stopping"]["num_runs"] == 0


def test_plateau_scheduler_begins_anew_with_another_metric(copy_data, tmp_path):
    options = (*ARCHITECTURES["lstm"], "--lr-scheduler", "reduce_lr_on_plateau")
    train(copy_data, tmp_path, *options, "--max-epoch", 2)
    options = (*options, "--max-epoch", 4, "--best-checkpoint-metric", "ppl")
    train(copy_data, tmp_path, *options, "--reset-meters")
    third, last = (training_state(tmp_path / name) for name in ("checkpoint3.pt", LAST))
    assert last["scheduler"]["best"] == third["val_loss"]


def test_an_average_begins_at_a_checkpoint_without_one(uninterrupted, tmp_path):
    complete, data, options = uninterrupted
    average = (*options, "--store-ema", "--ema-decay", 1)
    checkpoint = complete / "checkpoint_3_21.pt"
    expected = load(checkpoint)["model"]

    tuning = ("--finetune-from-model", checkpoint, "--max-update", 1)
    log = train(data, tmp_path / "tuned", *average, *tuning).stdout
    assert "`--store-ema` begins with its weights" in log
    assert same_state(load(tmp_path / "tuned" / LAST)["extra_state"]["ema"], expected)
    killed = resumed(checkpoint, tmp_path / "killed", data, *average, "--ema-fp32")
    result = load(killed / LAST)
    assert same_state(result["extra_state"]["ema"], expected)
    assert same_state(result["model"], load(complete / LAST)["model"])


def test_finished_run_is_left_alone(uninterrupted, tmp_path):
    complete, data, options = uninterrupted
    before = fingerprint(complete)
    log = train(data, complete, *options).stdout
    assert "nothing to do: this run has finished (--max-update 26)" in log
    assert fingerprint(complete) == before
    train(data, complete, *options, "--max-update", 99, "--max-epoch", 2)
    assert fingerprint(complete) == before

    shutil.copytree(complete, tmp_path / "copy")
    train(data, tmp_path / "copy", *options, plugin=plugin_without(tmp_path, "finished runs"))
    assert training_state(tmp_path / "copy" / LAST)["updates"] == 27


def test_temporary_files_of_killed_runs_are_removed(uninterrupted, tmp_path):
    complete, data, options = uninterrupted
    folder = tmp_path / "killed"
    folder.mkdir()
    shutil.copy(complete / LAST, folder)
    (folder / ".checkpoint_best.pt.99.tmp").write_bytes(b"half a checkpoint")
    train(data, folder, *options)
    assert names(folder) == [LAST]


def test_curriculum_ends():
    """Batches are shuffled after the epochs of ``--curriculum``; fairseq forgot to."""
    batches = [[index] for index in range(20)]
    iterator = EpochBatchIterator(ListDataset(range(20)), list, batches, reuse_dataloader=True)
    first = list(iterator.next_epoch_itr(shuffle=False))
    assert first == batches
    second = list(iterator.next_epoch_itr(shuffle=True))
    assert sorted(second) == batches
    assert second != batches


def test_every_checkpoint_that_was_asked_for(copy_data, tmp_path):
    """While the loss rises, the best three are still three; the end of an epoch is an interval."""
    options = (*ARCHITECTURES["lstm"], "--lr", 5, "--max-update", 14)
    options += ("--keep-best-checkpoints", 3, "--save-interval-updates", 1)
    train(copy_data, tmp_path, *options)
    assert len(list(tmp_path.glob("checkpoint.best_loss_*.pt"))) == 3
    updates = training_state(tmp_path / LAST)["updates"]
    numbers = [int(path.stem.rpartition("_")[2]) for path in tmp_path.glob("checkpoint_?_*.pt")]
    assert sorted(numbers) == list(range(1, updates + 1))


# Checkpoints written while training goes on: the same files, whole whenever a run is killed
EPOCHS = (*ARCHITECTURES["lstm"], "--dropout", 0.1, "--max-epoch", 3)
SAVED = (
    *("--save-interval-updates", 7, "--keep-interval-updates", 2, "--keep-last-epochs", 1),
    *("--keep-best-checkpoints", 2),
)
BEHIND = "--write-checkpoints-asynchronously"
LAST_ONE = 7
"""How many checkpoints are written."""

# The second checkpoint stops in the middle until three more updates are made; then the run dies.
KILLED = """
import os, threading
import fairseq_ext
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq_ext.plugin.repairs import resume

fairseq_ext.register()
write, train_step = resume.write, FairseqTask.train_step
files, updates = [], threading.Semaphore(0)

def counted(*arguments, **options):
    if files:
        updates.release()
    return train_step(*arguments, **options)

def half(content, file):
    files.append(file)
    if len(files) == 1:
        return write(content, file)
    file.write(bytes(content.getbuffer()[:1000]))
    file.flush()
    while updates.acquire(blocking=False):
        pass
    made = [updates.acquire(timeout=60) for _ in range(3)]
    os._exit(9 if all(made) else 3)  # like a kill: nothing is tidied up

resume.write = half
FairseqTask.train_step = counted
"""

# No checkpoint from this one on can be written; of the last one it shows after the training only.
FULL = """
import errno, logging, threading
import fairseq_ext
from fairseq_ext.plugin.repairs import resume

fairseq_ext.register()
write, written = resume.write, []
trained = threading.Event()

class Watch(logging.Handler):
    def emit(self, record):
        if "done training" in record.getMessage():
            trained.set()

logging.getLogger("fairseq_cli.train").addHandler(Watch())

def full(content, file):
    written.append(file)
    if len(written) >= {number}:
        assert {number} < {last} or trained.wait(timeout=60)
        raise OSError(errno.ENOSPC, "No space left on device")
    return write(content, file)

resume.write = full
"""


@pytest.fixture(scope="module")
def waited_for(copy_data, tmp_path_factory):
    """The folder of a run that waits for its checkpoints."""
    folder = tmp_path_factory.mktemp("waited")
    train(copy_data, folder, *EPOCHS, *SAVED)
    return folder


def test_the_same_files(waited_for, copy_data, tmp_path):
    """Copies and removals included, though fairseq alone would write one file of several."""
    train(copy_data, tmp_path, *EPOCHS, *SAVED, BEHIND)
    assert names(tmp_path) == names(waited_for)
    expected = {path.name: training_state(path) for path in waited_for.glob("*.pt")}
    assert {LAST, "checkpoint_best.pt", "checkpoint3.pt", "checkpoint_3_28.pt"} < expected.keys()
    assert "checkpoint2.pt" not in expected
    for name, state in expected.items():
        assert same_state(training_state(tmp_path / name), state), name


def failed(data: Path, folder: Path, code: str) -> CompletedProcess[str]:
    """Train with a plugin of this code, which must end the training; ``run`` has checkpoints."""
    plugin = write_lines(folder / "plugin" / "__init__.py", [code]).parent
    return train(data, folder / "run", *EPOCHS, *SAVED, BEHIND, plugin=plugin, ok=False)


def test_training_goes_on_and_a_kill_leaves_the_checkpoint_before(waited_for, copy_data, tmp_path):
    folder = tmp_path / "run"
    died = failed(copy_data, tmp_path, KILLED)
    assert died.returncode == 9, died.stdout + died.stderr
    (torn,) = folder.glob("*.tmp")
    assert torn.name.startswith(".checkpoint1.pt.")
    assert torn.stat().st_size == 1000
    complete = [*folder.glob("*.pt")]
    assert folder / LAST in complete
    assert {training_state(path)["updates"] for path in complete} == {7}
    train(copy_data, folder, *EPOCHS, *SAVED, BEHIND)
    assert same_state(training_state(folder / LAST), training_state(waited_for / LAST))
    assert not [*folder.glob("*.tmp")]


@pytest.mark.parametrize("number", [2, LAST_ONE], ids=["in the middle", "the last one"])
def test_what_cannot_be_written_ends_the_run_with_one_line(number, copy_data, tmp_path):
    folder = tmp_path / "run"
    done = failed(copy_data, tmp_path, FULL.format(number=number, last=LAST_ONE))
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "No space left" in line)
    assert ": error: " in line
    assert "checkpoint" in line
    assert "Traceback" not in done.stderr
    assert not [*folder.glob("*.tmp")]
    if number == LAST_ONE:
        assert "done training" in done.stdout + done.stderr
    assert training_state(folder / LAST)["updates"] > 0
