"""What docs/scale.md says of training with several processes: two, on the CPU, with gloo."""

import re
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from fairseq_ext.plugin.repairs.cpu_training import _free_port
from tests.support.harness import BIN, REPO, USER_DIR, binarize, digits_corpus, fairseq, forked, run
from tests.support.trainings import ARCHITECTURES, TRAINING, same_state, training_state

pytestmark = pytest.mark.system

RUN = (*TRAINING, "--max-tokens", 600, "--no-epoch-checkpoints", "--clip-norm", 0.5)
TRANSFORMER = (*ARCHITECTURES["transformer"], *RUN, "--dropout", 0.1)
GRU = (*ARCHITECTURES["gru_tiny"], *RUN, "--ddp-backend", "legacy_ddp")
SHARDED = ("--zero-sharding", "os")
RECOMPUTED = {
    "muse": ARCHITECTURES["muse_tiny"],
    "linformer": ARCHITECTURES["linformer_tiny"],
    "bmt": ("--arch", "bmt_tiny"),
}
RECORDER = """
import os
import fairseq_ext
from fairseq.tasks.fairseq_task import FairseqTask

fairseq_ext.register()
original = FairseqTask.train_step

def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
    if not ignore_grad:
        with open({file!r} + os.environ["RANK"], "a") as out:
            print(self.epoch, *sample["id"].tolist(), file=out)
    return original(self, sample, model, criterion, optimizer, update_num, ignore_grad)

def begin_epoch(self, epoch, model):
    self.epoch = epoch

FairseqTask.train_step = train_step
FairseqTask.begin_epoch = begin_epoch
"""


def train(folder: Path, *options: object, plugin: Path = USER_DIR) -> CompletedProcess[str]:
    """Train with two processes to the end."""
    words = (BIN / "fairseq-train", *options, "--save-dir", folder, "--user-dir", plugin)
    return run(forked("python"), REPO / "tests/support/ranks.py", 2, _free_port(), *words)


def end(folder: Path) -> dict:
    return training_state(folder / "checkpoint_last.pt")


def norms(done: CompletedProcess[str]) -> list[str]:
    """The norm of the gradients in each update."""
    return re.findall(r"\| train_inner \|.*? gnorm=([^,\s]+)", done.stdout)


def losses(done: CompletedProcess[str]) -> list[float]:
    """The loss of each update, and that of the validation set."""
    result = re.findall(r"\| train_inner \|.*? loss=([^,\s]+)", done.stdout)
    result += re.findall(r"\| valid \| .*?\| loss (\S+)", done.stdout)
    return [float(loss) for loss in result]


@pytest.fixture(scope="module", params=["fp32", pytest.param("bf16", marks=pytest.mark.long)])
def complete(request, copy_data, tmp_path_factory):
    """Two epochs with an optimizer in each process: folder, command, and what it said."""
    folder = tmp_path_factory.mktemp("whole")
    half = ("--bf16", "--fp16-no-flatten-grads") if request.param == "bf16" else ()
    command = (copy_data, *TRANSFORMER, *half)
    return folder, command, train(folder, *command, "--max-epoch", 2)


def test_a_sharded_optimizer_ends_with_the_same_weights(complete, tmp_path):
    """Also where it was stopped: each process goes on with its part of the state.

    The second time a thread collects the parts, for a checkpoint behind the training.
    """
    folder, command, output = complete
    first = train(tmp_path, *command, *SHARDED, "--max-epoch", 1)
    pattern = r"state of ([\d,]+) of ([\d,]+) weights is in"
    sharded, weights = re.search(pattern, first.stdout).groups()
    share = int(sharded.replace(",", "")) / int(weights.replace(",", ""))
    assert share == pytest.approx(0.5, abs=0.1)
    behind = (*SHARDED, "--write-checkpoints-asynchronously")
    second = train(tmp_path, *command, *behind, "--max-epoch", 2)
    assert norms(first) + norms(second) == norms(output)
    assert len(norms(output)) == 8
    assert any(float(norm) > 0.5 for norm in norms(output))  # and so clipped
    sharded, plain = end(tmp_path), end(folder)
    assert sharded["updates"] == plain["updates"] == 8
    for name, weights in sharded["model"].items():  # Adam that is not shared out clips in its step
        torch.testing.assert_close(weights, plain["model"][name], rtol=0, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("complete", ["fp32"], indirect=True)
def test_one_process_goes_on_with_a_sharded_optimizer(complete, copy_data, tmp_path):
    """There is nothing to share out then, and the option may stay."""
    _, command, _ = complete
    train(tmp_path / "plain", *command, *SHARDED, "--max-epoch", 1)
    shutil.copytree(tmp_path / "plain", tmp_path / "sharded")
    before = end(tmp_path / "plain")["updates"]
    for name, options in (("plain", ()), ("sharded", SHARDED)):
        fairseq("train", *command, *options, "--save-dir", tmp_path / name, "--max-epoch", 2)
    assert same_state(end(tmp_path / "plain"), end(tmp_path / "sharded"))
    assert end(tmp_path / "plain")["updates"] > before


@pytest.mark.parametrize("complete", ["fp32"], indirect=True)
def test_recomputed_activations_end_with_the_same_bits(complete, tmp_path):
    """Dropout included, with torch's own DDP."""
    folder, command, output = complete
    recomputed = train(tmp_path, *command, "--checkpoint-activations", "--max-epoch", 2)
    assert norms(recomputed) == norms(output)
    assert same_state(end(tmp_path)["model"], end(folder)["model"])


@pytest.mark.long
@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputed_activations_give_the_same_losses(name, copy_data, tmp_path):
    # with Adam's own ε a gradient of nothing but rounding moves a weight as any other does
    adam = ("--adam-eps", 1e-3)
    command = (copy_data, *RECOMPUTED[name], *RUN, *adam, "--dropout", 0.1, "--max-update", 3)
    stored = train(tmp_path / "kept", *command)
    recomputed = train(tmp_path / "recomputed", *command, "--checkpoint-activations")
    assert losses(recomputed) == pytest.approx(losses(stored), abs=1.5e-3)
    assert len(losses(stored)) == 4
    ends = [end(tmp_path / selection)["model"] for selection in ("recomputed", "kept")]
    for weights, expected in zip(ends[0].values(), ends[1].values(), strict=True):
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-3)


def test_uneven_shards_count_every_sentence_once(copy_data, tmp_path):
    """13 batches for two processes, then a shard of one batch, of which one process has none."""
    words = [copy_data / f"dict.{side}.txt" for side in ("src", "tgt")]
    dictionaries = ("--srcdict", words[0], "--tgtdict", words[1])
    text = digits_corpus(tmp_path / "text", train=30, seed=2)
    small = binarize(text, tmp_path / "small", *dictionaries)
    plugin = tmp_path / "recorder"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(RECORDER.format(file=str(tmp_path / "seen")))
    data = f"{copy_data}:{small}"
    options = ("--batch-size", 40, "--required-batch-size-multiple", 1, "--max-epoch", 2)
    train(tmp_path / "model", data, *GRU, *options, plugin=plugin)
    visited: dict[int, list[int]] = {}
    batches = []
    for rank in range(2):
        lines = (tmp_path / f"seen{rank}").read_text().splitlines()
        batches.append(len(lines))
        for line in lines:
            epoch, *sentences = map(int, line.split())
            visited.setdefault(epoch, []).extend(sentences)
    assert {epoch: sorted(result) for epoch, result in visited.items()} == {
        1: list(range(500)),
        2: list(range(30)),
    }
    assert sum(batches) == 13 + 1
    assert batches[0] != batches[1]
    assert end(tmp_path / "model")["updates"] == 7 + 1


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ((*SHARDED, "--bf16"), "`--zero-sharding os` must have `--fp16-no-flatten-grads`"),
        (("--checkpoint-activations",), "`--checkpoint-activations` is an option of "),
    ],
    ids=["one-piece", "gru-recomputed"],
)
def test_what_does_not_work_is_refused(options, output, copy_data, tmp_path):
    done = fairseq("train", copy_data, *GRU, *options, "--save-dir", tmp_path / "model", ok=False)
    lines = (done.stdout + done.stderr).splitlines()
    (line,) = (line for line in lines if ": error: " in line)
    assert output in line
    assert not any("Traceback" in line for line in lines)
    assert not (tmp_path / "model").exists()
