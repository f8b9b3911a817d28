"""Which repairs of fairseq are needed: here, and where the problem is mended."""

from __future__ import annotations

import copy
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fairseq_ext.checkpoints import storage
from fairseq_ext.plugin import installation, patches, probes, table
from fairseq_ext.plugin.patches import Layer, Patch
from fairseq_ext.plugin.repairs import encoders
from fairseq_ext.utils.errors import EnvironmentProblem
from fairseq_ext.version import TESTED_FAIRSEQ
from tests.support.harness import run

REPAIRS = [patch for patch in patches.PATCHES if patch.until]
TESTED = installation.fairseq_distributions() == [TESTED_FAIRSEQ[0]]

NEEDED = """
import json, sys
from fairseq_ext.plugin.patches import PATCHES
print(json.dumps([patch.name for patch in PATCHES if patch.until and patch.needed()]))
"""


# Here


def test_every_repair_has_a_probe():
    default = Patch.__dataclass_fields__["needed"].default
    assert [patch.name for patch in REPAIRS if patch.needed is default] == []
    assert [
        patch.name for patch in patches.PATCHES if not patch.until and patch.needed is not default
    ] == []


@pytest.mark.skipif(not TESTED, reason=f"{TESTED_FAIRSEQ[0]} is not the fairseq here")
def test_what_the_tested_fairseq_needs():
    """Asked in a process of its own, where nothing is mended yet; asking leaves nothing behind."""
    said = run(sys.executable, "-c", NEEDED).stdout
    everything = [patch.name for patch in REPAIRS]
    idle = {"weights kept twice"}  # of fairseq 0.12.2 alone
    if np.lib.NumpyVersion(np.__version__) < "2.4.0":
        idle.add("length buckets")
    assert json.loads(said) == [name for name in everything if name not in idle]


# Where it is mended: (probe, what it is given), and how to mend it


@pytest.fixture
def rewritten(monkeypatch, tmp_path):
    """Give a module other source, without running it."""

    def rewrite(name: str, pattern: str, new: str) -> None:
        module = importlib.import_module(name)
        text = Path(module.__file__).read_text("utf-8")
        assert re.search(pattern, text), f"{name} lacks {pattern}"
        path = tmp_path / f"{name}.py"
        path.write_text(re.sub(pattern, new, text))
        monkeypatch.setattr(module, "__file__", str(path))

    return rewrite


@pytest.fixture
def replaced(monkeypatch):
    """Replace an attribute given as in :class:`~fairseq_ext.plugin.patches.Layer`."""

    def replace(target: str, value: object) -> None:
        for owner, name in table.owners(target):
            monkeypatch.setattr(owner, name, value)

    return replace


def test_source_is_that_of_fairseq_itself(monkeypatch):
    """Not of what is wrapped around; nothing where there is no such thing; None without source."""
    target = "fairseq.data.data_utils:get_buckets"
    before = probes.source(target)
    assert before.startswith("def get_buckets(")
    assert before.rstrip().endswith("return buckets")
    from fairseq.data import data_utils

    monkeypatch.setattr(data_utils, "get_buckets", lambda *_: None)
    assert "lambda" in probes.source(target)
    monkeypatch.undo()
    table.wrap(data_utils, "get_buckets", around)
    try:
        assert probes.source(target) == before
    finally:
        data_utils.get_buckets = data_utils.get_buckets.__wrapped__
    assert probes.source("fairseq.data.data_utils:nothing") == ""
    assert probes.source("fairseq.nothing:nothing") == ""
    monkeypatch.setattr(data_utils, "__file__", "/nowhere.py")
    assert probes.source("fairseq.data.data_utils") is None


def around(original):
    return lambda *given: original(*given)


def test_without_source_a_repair_is_taken_to_be_needed(monkeypatch):
    from fairseq.data import data_utils

    monkeypatch.setattr(data_utils, "__file__", "/nowhere.py")
    assert probes.has("fairseq.data.data_utils", "x")
    assert probes.lacks("fairseq.data.data_utils", "x")
    assert not probes.has("fairseq.data.nothing", "x")
    assert not probes.lacks("fairseq.data.nothing", "x")


def test_advice(monkeypatch, tmp_path):
    assert probes.gives_advice()
    (tmp_path / "tensorboardX").mkdir()
    (tmp_path / "tensorboardX" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not probes.gives_advice()


def test_log_file(replaced):
    from fairseq.logging.progress_bar import logger

    before = list(logger.handlers)
    target = "fairseq.logging.progress_bar:progress_bar"
    replaced(target, original(target))
    assert probes.reopens_log_file()
    assert logger.handlers == before
    replaced(target, lambda *_, **__: None)
    assert not probes.reopens_log_file()


def test_groups_of_diverse_beam_search(replaced):
    target = "fairseq.search:DiverseBeamSearch.step"
    assert not probes.numbers_groups_by_sentence()  # our patch is there
    replaced(target, original(target))
    assert probes.numbers_groups_by_sentence()


def original(target: str) -> object:
    """What fairseq itself has there, below what another test has wrapped around it."""
    ((owner, name),) = table.owners(target)
    found = getattr(owner, name)
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found


def test_old_interfaces(rewritten):
    assert probes.uses_old_interfaces()
    rewritten("fairseq.tasks.fairseq_task", r"torch\.cuda\.amp", "torch.amp")
    assert not probes.uses_old_interfaces()


def test_classes(monkeypatch):
    wanted = storage.harmless_classes()
    monkeypatch.setattr(torch.serialization, "get_safe_globals", lambda: [*wanted, Path])
    assert not probes.refused(wanted)
    monkeypatch.setattr(torch.serialization, "get_safe_globals", lambda: wanted[1:])
    assert probes.refused(wanted)


def test_sending_by_torch_load(replaced):
    target = "fairseq.distributed.utils:_broadcast_object_slow"
    assert probes.sends_by_torch_load()

    def _broadcast_object_slow(obj, src_rank, group, dist_device):
        return torch.load(obj, map_location="cpu", weights_only=False)

    replaced(target, _broadcast_object_slow)
    assert not probes.sends_by_torch_load()


def test_batches(replaced):
    replaced("fairseq.data.data_utils:batch_by_size", lambda indices, *_, **__: [indices])
    assert not probes.loses_tail()
    replaced("fairseq.data.data_utils:batch_by_size", lambda indices, *_, **__: [indices[:2]])
    assert probes.loses_tail()
    replaced("fairseq.data.iterators:EpochBatchIterator.ordered_batches", lambda self, **_: [[0]])
    assert not probes.loses_group()
    replaced("fairseq.data.iterators:EpochBatchIterator.ordered_batches", lambda self, **_: [])
    assert probes.loses_group()
    replaced("fairseq.data.iterators:EpochBatchIterator.__init__", lambda self, dataset: None)
    assert not probes.loses_group()


def test_buckets(replaced):
    def fails(sizes, count):
        return np.percentile(sizes, [50], no_such_option="lower")

    replaced("fairseq.data.data_utils:get_buckets", fails)
    assert probes.buckets_fail()
    replaced("fairseq.data.data_utils:get_buckets", lambda sizes, count: sizes)
    assert not probes.buckets_fail()


def test_names_of_numpy(rewritten, monkeypatch):
    user = ["data.token_block_dataset"]
    assert probes.uses_removed_names(user)
    for name in ("compat", "int", "float"):
        monkeypatch.setattr(np, name, int, raising=False)
    assert not probes.uses_removed_names(user)
    monkeypatch.undo()
    rewritten("fairseq.data.token_block_dataset", r"np\.compat\.long", "int")
    assert not probes.uses_removed_names(user)
    assert not probes.uses_removed_names(["data.no_such_module"])


def test_pointers(replaced):
    target = "fairseq.data.indexed_dataset:MMapIndexedDataset.Index.writer"
    replaced(target, lambda *_: SimpleNamespace(_get_pointers=lambda sizes: np.array([0, 2**32])))
    assert not probes.wraps_pointers()
    replaced(
        target, lambda *_: SimpleNamespace(_get_pointers=lambda sizes: np.array([0, -(2**31)]))
    )
    assert probes.wraps_pointers()


def test_shell(replaced, monkeypatch):
    from fairseq.data.fasta_dataset import FastaDataset

    # fairseq's own repository has no such method any more.
    monkeypatch.setattr(FastaDataset, "_build_index", None, raising=False)
    replaced("fairseq.data.fasta_dataset:FastaDataset._build_index", lambda self, path: path)
    assert not probes.asks_a_shell()
    replaced("fairseq.data.fasta_dataset:FastaDataset._build_index", with_a_shell)
    assert probes.asks_a_shell()


def with_a_shell(self, path):
    return subprocess.check_output(path, shell=True)


def test_old_layout(replaced):
    assert probes.caches_the_old_layout()
    replaced("fairseq.data.indexed_dataset:infer_dataset_impl", lambda path: "lazy")
    assert not probes.caches_the_old_layout()


def test_names_of_subsets(replaced):
    assert probes.takes_files_for_subsets()
    replaced("fairseq.data.data_utils:_find_extra_valid_paths", lambda path: {"valid1"})
    assert not probes.takes_files_for_subsets()


def test_parts_of_sets(replaced):
    assert probes.repeats_a_negative_number_of_times()
    replaced("fairseq.tasks.translation:TranslationConfig.__init__", once)
    assert not probes.repeats_a_negative_number_of_times()


def once(self):
    self.upsample_primary = 1


class LayerWithCopies(torch.nn.Module):
    """As fairseq 0.12.2 builds the layers of an encoder, and loads them."""

    def __init__(self, bias=True):
        super().__init__()
        self.fc1 = torch.nn.Linear(2, 2, bias=bias)
        self.load_to_BT = False
        self.fc1_weight = torch.nn.Parameter(torch.zeros(self.fc1.weight.shape))
        self.fc1_bias = torch.nn.Parameter(torch.zeros(self.fc1.bias.shape))
        self.BT_version = True

    def _load_from_state_dict(self, state, prefix, *rest):
        self.load_to_BT = True
        state[prefix + "fc1_weight"] = state[prefix + "fc1.weight"]
        state[prefix + "fc1_bias"] = state[prefix + "fc1.bias"]
        super()._load_from_state_dict(state, prefix, *rest)


def test_weights_kept_twice(replaced, monkeypatch):
    target = "fairseq.modules.transformer_layer:TransformerEncoderLayerBase.__init__"
    replaced(target, LayerWithCopies.__init__)
    assert probes.keeps_weights_twice()
    replaced(target, torch.nn.Linear.__init__)
    assert not probes.keeps_weights_twice()

    file = LayerWithCopies().state_dict()
    assert "fc1_weight" in file
    monkeypatch.setattr(LayerWithCopies, "__init__", LayerWithCopies.__init__)
    monkeypatch.setattr(
        LayerWithCopies, "_load_from_state_dict", LayerWithCopies._load_from_state_dict
    )
    table.wrap(LayerWithCopies, "__init__", encoders.without_copies)
    table.wrap(LayerWithCopies, "_load_from_state_dict", encoders.load_once)
    for bias in (True, False):
        layer = LayerWithCopies(bias)
        assert set(layer.state_dict()) == {"fc1.weight", "fc1.bias"} - (
            set() if bias else {"fc1.bias"}
        )
        assert not layer.BT_version
    layer = LayerWithCopies()
    layer.load_state_dict(file)
    assert not layer.load_to_BT
    assert torch.equal(layer.fc1.weight, file["fc1.weight"])
    table.wrap(Broken, "__init__", encoders.without_copies)
    with pytest.raises(AttributeError):
        Broken()


class Broken:
    def __init__(self):
        self.nothing.at_all()


def test_processes(replaced):
    assert probes.counts_cuda_devices()
    replaced("fairseq.distributed.utils:call_main", around)
    assert probes.counts_cuda_devices()
    replaced("fairseq.distributed.utils:all_gather_list", around)
    assert not probes.counts_cuda_devices()


def test_bf16(rewritten, monkeypatch, tmp_path):
    assert probes.takes_bf16_for_tpu()
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla" / "__init__.py").touch()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        assert not probes.takes_bf16_for_tpu()
    importlib.invalidate_caches()
    rewritten("fairseq.options", r"if args\.bf16:\s+args\.tpu = True", "pass")
    assert not probes.takes_bf16_for_tpu()


def test_half_precision_on_the_cpu(rewritten):
    assert probes.scales_on_cuda_alone()
    rewritten("fairseq.optim.fp16_optimizer", r"torch\.cuda", "torch.accelerator")
    assert probes.scales_on_cuda_alone()
    rewritten("fairseq.optim.amp_optimizer", r"torch\.cuda\.amp", "torch.amp")
    assert not probes.scales_on_cuda_alone()


PLATEAU = "fairseq.optim.lr_scheduler.reduce_lr_on_plateau:ReduceLROnPlateauLRSchedule.state_dict"


def test_resume(replaced):
    assert probes.forgets_seed_of_batches()
    replaced(
        "fairseq.data.iterators:EpochBatchIterator.state_dict", lambda self: {"seed": self.seed}
    )
    assert not probes.forgets_seed_of_batches()

    assert probes.forgets_validation()
    replaced(PLATEAU, lambda self: {"num_bad_epochs": self.lr_scheduler.num_bad_epochs})
    assert probes.forgets_validation()
    replaced("fairseq.checkpoint_utils:save_checkpoint", lambda *_: {"num_runs": 0})
    assert not probes.forgets_validation()


def test_copies(replaced):
    def copy(src_path, dst_path, overwrite=False):
        Path(src_path).rename(dst_path)

    assert probes.copies_in_place()
    replaced("fairseq.file_io:PathManager.copy", staticmethod(copy))
    assert not probes.copies_in_place()


def test_finished_runs(monkeypatch, tmp_path):
    before = set(sys.modules)
    assert probes.trains_when_finished()
    assert {name for name in set(sys.modules) - before if name.startswith("fairseq_cli.")} == set()
    command = tmp_path / "train.py"
    command.write_text("\ndef main(cfg):\n    if trainer.get_num_updates() >= 9:\n        return\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: SimpleNamespace(origin=str(command)))
    assert not probes.trains_when_finished()
    command.write_text("\ndef main(cfg):\n    pass\n\n\ndef get_num_updates():\n    pass\n")
    assert probes.trains_when_finished()


def test_half_precision_after_resume(replaced):
    assert probes.forgets_master_weights()
    replaced(
        "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin.state_dict",
        lambda self: {"fp32_params": self.fp32_params},
    )
    assert not probes.forgets_master_weights()


class GoodAverage:
    """Copies whole numbers, keeps versions, and averages tied weights once."""

    share = 0.5

    def __init__(self, model, config):
        self.model = copy.deepcopy(model)

    def step(self, model):
        mean = torch.lerp(self.model.weight, model.weight, self.share)
        self.model.load_state_dict({**model.state_dict(), "weight": mean, "tied": mean})

    def get_model(self):
        return self.model


class ForgetfulAverage(GoodAverage):
    def step(self, model):
        self.model.load_state_dict({"weight": model.weight}, strict=False)


class DyingAverage(GoodAverage):
    def step(self, model):
        model.count.mul_(0.5)


class TwiceAverage(GoodAverage):
    share = 0.75


@pytest.mark.parametrize(
    ("average", "wrong"),
    [(GoodAverage, False), (ForgetfulAverage, True), (DyingAverage, True), (TwiceAverage, True)],
)
def test_averages(average, wrong, replaced):
    replaced("fairseq.models.ema.ema:EMA", average)
    assert probes.averages_wrongly() == wrong


def test_averages_after_resume(replaced):
    assert probes.forgets_averages()
    replaced("fairseq.trainer:Trainer.load_checkpoint", lambda self, filename: None)
    assert probes.forgets_averages()
    replaced("fairseq.trainer:Trainer.state_dict", lambda self: self.ema.update_freq_counter)
    assert not probes.forgets_averages()


def test_threads(rewritten):
    assert probes.abandons_threads()
    rewritten("fairseq.data.iterators", r"self\._consumer = None", "atexit.register(self.close)")
    assert not probes.abandons_threads()


def test_destructors(replaced):
    target = "fairseq.data.indexed_dataset:MMapIndexedDataset.__del__"
    replaced(target, lambda self: self._bin_buffer_mmap._mmap.close())
    assert probes.closes_what_is_not_open()
    replaced(target, lambda self: None)
    assert not probes.closes_what_is_not_open()


# The table


def test_a_target_that_is_gone_matters_only_where_the_repair_is_needed():
    for target in ("fairseq.gone:nothing", "fairseq.utils:nothing", "fairseq.utils:No.thing"):
        layers = (Layer(target, around),)
        idle = Patch("idle", "why", "when", layers, needed=lambda: False)
        applied: set[str] = set()
        table.apply((idle,), applied)
        assert applied == set()
        busy = Patch("busy", "why", "when", layers)
        with pytest.raises(EnvironmentProblem, match=r"busy.*does not fit the installed fairseq"):
            table.apply((busy,), applied)


def test_report_of_a_nan(rewritten):
    assert probes.reports_by_old_hooks()
    rewritten("fairseq.nan_detector", "register_backward_hook", "register_full_backward_hook")
    assert not probes.reports_by_old_hooks()
