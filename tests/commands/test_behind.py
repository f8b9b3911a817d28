"""Checkpoints written while training goes on: the same files, whole whenever a run is killed."""

from pathlib import Path

import pytest

from tests.support.harness import fairseq, run
from tests.support.trainings import ARCHITECTURES, TRAINING, same_state, training_state

pytestmark = pytest.mark.system

RUN = (*ARCHITECTURES["lstm"], *TRAINING, "--dropout", 0.1, "--max-epoch", 3)
SAVED = (
    *("--save-interval-updates", 7, "--keep-interval-updates", 2, "--keep-last-epochs", 1),
    *("--keep-best-checkpoints", 2),
)
BEHIND = "--write-checkpoints-asynchronously"
LAST = "checkpoint_last.pt"
LAST_ONE = 7
"""How many checkpoints are written."""

# The second checkpoint stops in the middle until three more updates are made; then the run dies.
KILLED = """
import os, threading
import fairseq_ext
from fairseq import checkpoint_utils
from fairseq.tasks.fairseq_task import FairseqTask

fairseq_ext.register()
write, train_step = checkpoint_utils._torch_persistent_save, FairseqTask.train_step
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

checkpoint_utils._torch_persistent_save = half
FairseqTask.train_step = counted
"""

# No checkpoint from this one on can be written; of the last one it shows after the training only.
FULL = """
import errno, logging, threading
import fairseq_ext
from fairseq import checkpoint_utils

fairseq_ext.register()
write, written = checkpoint_utils._torch_persistent_save, []
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

checkpoint_utils._torch_persistent_save = full
"""


def train(data: Path, folder: Path, *options: object) -> str:
    return fairseq("train", data, *RUN, "--save-dir", folder, *options).stdout


def plugin(folder: Path, code: str) -> Path:
    path = folder / "plugin"
    path.mkdir()
    (path / "__init__.py").write_text(code)
    return path


@pytest.fixture(scope="module")
def waited_for(copy_data, tmp_path_factory):
    """The folder of a run that waits for its checkpoints."""
    folder = tmp_path_factory.mktemp("waited")
    train(copy_data, folder, *SAVED)
    return folder


def test_the_same_files(waited_for, copy_data, tmp_path):
    """Copies and removals included, though fairseq alone would write one file of several."""
    train(copy_data, tmp_path, *SAVED, BEHIND)
    names = {path.name for path in waited_for.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert {LAST, "checkpoint_best.pt", "checkpoint3.pt", "checkpoint_3_28.pt"} < names
    assert "checkpoint2.pt" not in names
    for name in names:
        if name.endswith(".pt"):
            assert same_state(training_state(tmp_path / name), training_state(waited_for / name)), (
                name
            )


def test_training_goes_on_and_a_kill_leaves_the_checkpoint_before(waited_for, copy_data, tmp_path):
    folder = tmp_path / "run"
    options = (copy_data, *RUN, *SAVED, BEHIND, "--save-dir", folder)
    died = run("fairseq-train", *options, "--user-dir", plugin(tmp_path, KILLED), ok=False)
    assert died.returncode == 9, died.stdout + died.stderr
    (torn,) = folder.glob("*.tmp")
    assert torn.name.startswith(".checkpoint1.pt.")
    assert torn.stat().st_size == 1000
    complete = [*folder.glob("*.pt")]
    assert folder / LAST in complete
    assert {training_state(path)["updates"] for path in complete} == {7}
    train(copy_data, folder, *SAVED, BEHIND)
    assert same_state(training_state(folder / LAST), training_state(waited_for / LAST))
    assert not [*folder.glob("*.tmp")]


@pytest.mark.parametrize("number", [2, LAST_ONE], ids=["in the middle", "the last one"])
def test_what_cannot_be_written_ends_the_run_with_one_line(number, copy_data, tmp_path):
    folder = tmp_path / "run"
    options = (copy_data, *RUN, *SAVED, BEHIND, "--save-dir", folder)
    code = FULL.format(number=number, last=LAST_ONE)
    failed = run("fairseq-train", *options, "--user-dir", plugin(tmp_path, code), ok=False)
    assert failed.returncode == 1
    (line,) = (line for line in failed.stderr.splitlines() if "No space left" in line)
    assert ": error: " in line
    assert "checkpoint" in line
    assert "Traceback" not in failed.stderr
    assert not [*folder.glob("*.tmp")]
    if number == LAST_ONE:
        assert "done training" in failed.stdout + failed.stderr
    assert training_state(folder / LAST)["updates"] > 0
