"""Every patch of fairseq: what fails without it works with it."""

import argparse
import importlib
import importlib.metadata
import inspect
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import bucket_pad_length_dataset, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.file_io import PathManager
from fairseq.modules import FairseqDropout

from fairseq_ext.plugin import patches, patching
from fairseq_ext.plugin.repairs import cpu_training
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import (
    REPO,
    USER_DIR,
    digits_corpus,
    fairseq,
    hypotheses,
    preprocess,
    python,
    run,
)
from tests.support.trainings import ARCHITECTURES, STOCK, load, plugin_without, train

LAST = "checkpoint_last.pt"
ALARM = re.compile(r"warning|deprecat|\| error|traceback|^debug:", re.IGNORECASE | re.MULTILINE)


@pytest.fixture(scope="module", params=STOCK)
def trained(request, copy_data, tmp_path_factory):
    """Two epochs of a stock architecture: the folder and everything the command said."""
    folder = tmp_path_factory.mktemp(request.param)
    done = train(copy_data, folder, *ARCHITECTURES[request.param], "--max-epoch", 2)
    return folder, done.stdout + done.stderr


def test_patches_are_applied_once_and_listed():
    patches.apply()
    names = tuple(patch.name for patch in patches.active)
    assert len(names) == len(set(names)) > 10
    assert names == tuple(patch.name for patch in patches.PATCHES)
    assert all(patch.reason for patch in patches.PATCHES)
    function = data_utils.batch_by_size
    patches.apply()
    patching.apply(next(patch for patch in patches.active if patch.name == "last batch"))
    assert data_utils.batch_by_size is function
    assert isinstance(vars(PathManager)["copy"], staticmethod)
    assert isinstance(vars(MMapIndexedDataset.Index)["writer"], classmethod)


def test_dropout_can_be_scripted():
    """torch.jit.script compiles the source of what a patch wraps, with the patch's names."""
    torch.jit.script(FairseqDropout(0.1).eval())(torch.ones(2))


def test_the_table_shows_where_fairseq_is_missing():
    code = (
        "import sys; sys.modules['fairseq'] = None\n"
        "from fairseq_ext.plugin import patches; print(len(patches.PATCHES), patches.active)"
    )
    output = run(sys.executable, "-c", code).stdout
    assert output.split(maxsplit=1) == [str(len(patches.PATCHES)), "[]\n"]


def layers_of(function) -> list[str]:
    """The makers of the layers around a function, the one called first at the front.

    Each once: torch wraps the step of an optimizer that is built, and copies its attributes.
    """
    result = {}
    while function is not None:
        result[getattr(function, "_wrapped_by", None)] = None
        function = getattr(function, "__wrapped__", None)
    return [maker for maker in result if maker]


def test_the_report_has_every_layer_in_the_order_it_is_called():
    """Against what really stands around fairseq's functions in this process.

    Commands are imported after the patches were applied, as by a program that registers first.
    """
    patches.apply()
    wrappers = {
        (target, patch.name): f"{layer.wrapper.__module__}.{layer.wrapper.__qualname__}"
        for patch in patches.PATCHES
        for layer in patch.layers
        for target in layer.targets
    }
    checked = 0
    for target, rows in patches.by_target().items():
        expected = [wrappers[target, row.name] for row in rows]
        importlib.import_module(target.partition(":")[0])
        for owner, name in patching.owners(target):
            assert layers_of(getattr(owner, name)) == expected, target
            checked += 1
    assert checked > 30
    text = patches.as_text()
    assert all(patch.name in text and patch.reason[:30] in text for patch in patches.PATCHES)


def test_only_the_table_wraps():
    """So that the report is complete."""
    package = REPO / "fairseq_ext"
    sources = {path: path.read_text() for path in package.rglob("*.py")}
    callers = [
        path for path, source in sources.items() if re.search(r"(?<!textwrap\.)\bwrap\(", source)
    ]
    assert callers == [package / "plugin" / "patching.py"]


def test_stock_checkpoints_hold_only_allowed_classes(trained):
    folder, _ = trained
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(folder / LAST)
    assert set(unsafe) <= {"argparse.Namespace"}


def test_meters_of_eval_bleu_can_be_loaded(tmp_path):
    """Counts of n-grams are numpy arrays; options a Namespace. Fails in a bare torch."""
    path = tmp_path / "state.pt"
    torch.save({"args": argparse.Namespace(a=1), "counts": np.arange(4), "n": np.int64(3)}, path)
    state = torch.load(path)
    assert state["args"] == argparse.Namespace(a=1)
    assert np.array_equal(state["counts"], np.arange(4))
    code = f"import torch; torch.load({str(path)!r})"
    assert "UnpicklingError" in python("-c", code, ok=False).stderr


@pytest.mark.parametrize("size", [0, 1, 7, 8, 10, 16, 50])
@pytest.mark.parametrize("limit", [{"max_tokens": 60}, {"max_sentences": 9}])
def test_no_sentence_is_lost(size, limit):
    lengths = np.arange(size) % 5 + 1
    options = {"num_tokens_vec": lengths, "required_batch_size_multiple": 8, **limit}
    sentences = [*range(size)], lengths.__getitem__
    result = data_utils.batch_by_size(*sentences, **options)
    assert [index for batch in result for index in batch] == sentences[0]
    assert all(len(batch) % 8 == 0 for batch in result if len(batch) > 8)
    assert all(len(batch) <= 9 for batch in result if "max_sentences" in limit)
    if size:  # with none, fairseq fails
        of_fairseq = inspect.unwrap(data_utils.batch_by_size)(*sentences, **options)
        assert sum(map(len, of_fairseq)) == size // 8 * 8


def test_the_task_of_mbart_trains_and_translates(copy_data, tmp_path):
    task = ("--task", "translation_from_pretrained_bart", "--langs", "src,tgt")
    train(copy_data, tmp_path, *ARCHITECTURES["gru_tiny"], *task, "--max-update", 20)
    words = ("generate", copy_data, "--path", tmp_path / LAST, "--cpu", *task, "--engine")
    by_engine, by_fairseq = (
        hypotheses(fairseq(*words, name).stdout) for name in ("native", "fairseq")
    )
    assert by_engine == by_fairseq
    assert any(by_engine)


def test_buckets_cut_the_corpus_evenly():
    assert bucket_pad_length_dataset.get_buckets(range(1, 101), 4).tolist() == [25, 50, 75, 100]
    assert bucket_pad_length_dataset.get_buckets([3, 3, 3], 2).tolist() == [3]


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.4.0", reason="numpy has the names")
def test_num_batch_buckets(copy_data, tmp_path):
    options = (*ARCHITECTURES["lstm"], "--num-batch-buckets", 3, "--max-update", 2)
    train(copy_data, tmp_path / "ours", *options)
    assert (tmp_path / "ours" / LAST).exists()
    plugin = plugin_without(tmp_path / "plugin", "old names of numpy")
    assert "interpolation" in train(copy_data, tmp_path, *options, plugin=plugin, ok=False).stderr


def test_bf16_trains_on_the_cpu(copy_data, tmp_path):
    options = (*ARCHITECTURES["transformer"], "--bf16", "--max-update", 2)
    done = train(copy_data, tmp_path, *options)
    lines = (done.stdout + done.stderr).splitlines()
    slower = [line for line in lines if "times as long as in fp32" in line]
    assert len(slower) <= 1  # where the processor has no bf16: test_training_speed.py
    assert not [line for line in lines if ALARM.search(line) and line not in slower]
    assert load(tmp_path / LAST)["cfg"]["common"]["bf16"]
    plugin = plugin_without(tmp_path, "bf16 without a TPU")
    assert "xla_device" in train(copy_data, tmp_path, *options, plugin=plugin, ok=False).stderr


def test_processes_of_torchrun_train_one_model(monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="torchrun has started 2 processes, but `--distr"):
        cpu_training.require_one_job(SimpleNamespace(distributed_world_size=1))
    cpu_training.require_one_job(SimpleNamespace(distributed_world_size=2))


@pytest.mark.parametrize("name", ["generate", "validate", "interactive"])
def test_no_command_prints_warnings(name, trained, copy_data):
    folder, output = trained
    assert "done training" in output
    options = ("--task", "translation", "--max-tokens", 400) if name == "validate" else ()
    stdin = "1 2 3\n" if name == "interactive" else None
    done = fairseq(name, copy_data, "--path", folder / LAST, "--cpu", *options, stdin=stdin)
    for text in (output, done.stdout + done.stderr):
        assert not ALARM.search(text), ALARM.search(text)


def test_preprocessing_prints_no_warnings(tmp_path):
    done = preprocess(digits_corpus(tmp_path / "text"), tmp_path / "bin")
    assert not ALARM.search(done.stdout + done.stderr)


def test_without_the_filters_training_warns(copy_data, tmp_path):
    plugin = plugin_without(tmp_path, "warnings of a normal run")
    options = (*ARCHITECTURES["transformer"], "--max-update", 1, "--disable-validation")
    output = train(copy_data, tmp_path, *options, plugin=plugin).stderr
    warnings = {"autocast", "pin_memory", "mismatched key_padding_mask", "hydra"}
    if importlib.metadata.version("hydra-core").startswith("1.0."):  # it does not warn
        warnings.remove("hydra")
    if "'pin_memory' argument" not in inspect.getsource(torch.utils.data.dataloader):  # torch 2.6
        warnings.remove("pin_memory")
    assert not [words for words in warnings if words not in output]


def test_log_file_repeats_no_line(copy_data, tmp_path):
    """Without the fix the second epoch's lines stand there twice or more."""
    lines = {}
    for name, plugin in {"with": USER_DIR, "without": plugin_without(tmp_path, "log file")}.items():
        log = tmp_path / f"{name}.log"
        if name == "with":
            # fairseq would make this folder too late, and compares no such path with its files
            log = tmp_path / "run" / ".." / "run" / "train.log"
        options = ("--max-epoch", 2, "--no-save", "--log-format", "json", "--log-file", log)
        train(copy_data, log.parent, *ARCHITECTURES["lstm"], *options, plugin=plugin)
        lines[name] = [line for line in log.read_text().splitlines() if '"valid_loss"' in line]
    assert len(lines["with"]) == 2
    assert len(lines["without"]) > 2


BACKGROUND = """
import sys
import torch
from fairseq.data.iterators import BufferedIterator
if sys.argv[1] == "with":
    import fairseq_ext
    fairseq_ext.register()

class Batches:
    def __len__(self):
        return 1000
    def __iter__(self):
        for _ in range(1000):
            yield torch.stack([torch.randn(300, 30).sort()[0] for _ in range(50)]).sum().item()

print(next(BufferedIterator(SIZE, Batches())) != 0)
"""


@pytest.mark.parametrize("size", [1000, 1])
def test_a_process_ends_well_while_batches_are_made(size):
    """With room in the queue the thread is busy when the process ends, else it waits for room."""
    script = BACKGROUND.replace("SIZE", str(size))
    assert python("-c", script, "with").stdout.endswith("True\n")
    if size > 1:
        with pytest.raises(AssertionError, match="status -6"):
            python("-c", script, "without")
