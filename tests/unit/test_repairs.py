"""Repairs of fairseq whose fault shows in one function: wrong in fairseq's own, right in ours.

Faults that show only in a whole command are in ``tests/commands``.
"""

import ctypes
import errno
import inspect
import itertools
import logging
import math
import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import (
    ConcatDataset,
    DenoisingDataset,
    Dictionary,
    ListDataset,
    PrependTokenDataset,
    SortDataset,
)
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.data.iterators import CountingIterator, EpochBatchIterator, GroupedIterator
from fairseq.data.multilingual.sampled_multi_epoch_dataset import SampledMultiEpochDataset
from fairseq.dataclass.configs import EMAConfig
from fairseq.file_io import PathManager
from fairseq.logging import metrics
from fairseq.models.ema.ema import EMA
from fairseq.modules import dynamic_convolution
from fairseq.search import Sampling
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask

from fairseq_ext import register
from fairseq_ext.plugin import patches, patching
from fairseq_ext.plugin.patching import Layer, Patch
from fairseq_ext.plugin.repairs import models, resume
from fairseq_ext.utils.errors import ConfigError, EnvironmentProblem
from tests.support.models import BMT, MUSE, SMALL, build, dictionary, net_input, sample_of


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put back fairseq's own functions in place of all that a patch wraps."""

    def unwrap(name: str) -> None:
        (patch,) = (patch for patch in patches.PATCHES if patch.name == name)
        for target in [target for layer in patch.layers for target in layer.targets]:
            for owner, attribute in patching.owners(target):
                function = inspect.unwrap(getattr(owner, attribute))
                if isinstance(vars(owner)[attribute], staticmethod | classmethod):
                    function = type(vars(owner)[attribute])(getattr(function, "__func__", function))
                monkeypatch.setattr(owner, attribute, function)

    return unwrap


def test_the_kind_of_each_patch_is_the_folder_of_its_module() -> None:
    rooms = {"repair": "repairs", "security": "security", "feature": "features", "check": "checks"}
    for patch in patches.PATCHES:
        modules = {layer.wrapper.__module__ for layer in patch.layers}
        inside = {name for name in modules if name.startswith("fairseq_ext.plugin.")}
        assert {name.split(".")[2] for name in inside} <= {rooms[patch.kind]}, patch.name


@pytest.mark.parametrize("target", ["gone:nothing", "utils:nothing", "utils:No.thing"])
def test_a_target_that_is_gone_names_its_patch(target: str) -> None:
    patch = Patch("lost", "why", layers=(Layer((f"fairseq.{target}",), models.load_once.wrapper),))
    fault = r"lost.*does not fit the installed fairseq.*fairseq-fixed==0\.12\.3\.1"
    with pytest.raises(EnvironmentProblem, match=fault):
        patching.apply(patch)


def test_fairseq_gives_no_advice_on_speech() -> None:
    assert logging.getLogger("fairseq.tasks.text_to_speech").level == logging.WARNING


def attention_to_the_source(decoding: bool) -> torch.Tensor:
    """The weights ``[S, T]`` that align a translation, as searched or as trained."""
    flags = ["--arch", "transformer_align", *SMALL, "--decoder-layers", "3"]
    flags += ["--alignment-layer", "1", "--alignment-heads", "1"]
    model, task = build(flags)
    options = Namespace(beam=2, max_len_b=9, print_alignment="hard", engine="fairseq")
    sample = sample_of([[5, 8, 6, 2]])
    best = task.build_generator([model], options).generate([model], sample)[0][0]
    if decoding:
        return best["attention"]
    words = net_input(sample["net_input"]["src_tokens"], best["tokens"].unsqueeze(0))
    return model(**words)[1]["attn"][0][0].transpose(0, 1)


def test_alignments_are_those_of_the_trained_layer(without: Callable[[str], None]) -> None:
    trained = attention_to_the_source(decoding=False)
    torch.testing.assert_close(attention_to_the_source(decoding=True), trained)
    without("alignment layer")
    assert not torch.allclose(attention_to_the_source(decoding=True), trained)


def test_the_task_of_mbart_reads_all_options_of_a_search(without: Callable[[str], None]) -> None:
    """Its translations, and references that it scores, end with the target's language."""
    model, _ = build(["--arch", "gru_tiny"])
    options = Namespace(langs="en,de", source_lang="en", target_lang="de", data="bin")
    task = TranslationFromPretrainedBARTTask(options, Dictionary(), Dictionary())
    end = task.target_dictionary.index("[de]")
    generator = task.build_generator([model], Namespace(sampling=True, beam=2))
    scorer = task.build_generator([model], Namespace(score_reference=True))
    assert type(generator.search) is Sampling
    assert (generator.eos, generator.search.eos, scorer.eos) == (end, end, end)
    assert generator.symbols_to_strip_from_output == scorer.symbols_to_strip_from_output == {end}
    with pytest.raises(ConfigError, match="`--langs` is missing"):
        TranslationFromPretrainedBARTTask(Namespace(langs=None), Dictionary(), Dictionary())
    without("task of mBART")
    task = TranslationFromPretrainedBARTTask(options, Dictionary(), Dictionary())
    with pytest.raises(AttributeError, match="args"):
        task.load_dataset("train")


def bleu_in_validation(hypotheses: list[str]) -> float:
    """Validate on batches of one sentence, `[de] a b c d e`, with these hypotheses."""
    _, task = build(["--arch", "gru_tiny"])
    task.tgt_dict = words = Dictionary()
    task.tokenizer, task.cfg.eval_bleu, task.cfg.eval_bleu_remove_bpe = None, True, None
    target = words.encode_line("[de] a b c d e").long()
    left_out = {words.index("[de]"), words.eos()}
    generator = SimpleNamespace(symbols_to_strip_from_output=left_out)
    with metrics.aggregate(new_root=True) as meters:
        for hypothesis in hypotheses:
            tokens = words.encode_line(hypothesis, add_if_not_exist=False)
            task.inference_step = lambda *_, tokens=tokens, **__: [[{"tokens": tokens}]]
            bleu = task._inference_with_bleu(generator, {"target": target.unsqueeze(0)}, None)
            counts = dict(zip((f"_bleu_counts_{n}" for n in range(4)), bleu.counts, strict=True))
            counts |= zip((f"_bleu_totals_{n}" for n in range(4)), bleu.totals, strict=True)
            log = {"ntokens": 7, "nsentences": 1, "sample_size": 7, "_bleu_sys_len": bleu.sys_len}
            log |= {"_bleu_ref_len": bleu.ref_len, **counts}
            task.reduce_metrics([log], CrossEntropyCriterion(task, False))
        return meters.get_smoothed_value("bleu")


def test_bleu_in_validation_counts_words_only_and_all_batches(without: Callable[[str], None]):
    right, halves = "[de] a b c d e", pytest.approx(100 * math.exp(1 - 2), abs=0.01)
    assert bleu_in_validation([right]) == 100
    assert bleu_in_validation(["[de]", right]) == bleu_in_validation([right, "[de]"]) == halves
    assert bleu_in_validation(["[de]"]) == 0
    ours = bleu_in_validation(["[de] e d c b a"])
    without("validation BLEU")
    assert bleu_in_validation(["[de] e d c b a"]) > ours
    assert bleu_in_validation([right, ""]) == 100


def test_scores_of_an_ensemble_with_and_without_attention(without: Callable[[str], None]) -> None:
    flags = ["--arch", "transformer_tiny", *SMALL]
    attentive, task = build(flags)
    ensemble = [attentive, build([*flags, "--no-cross-attention"])[0]]
    scorer = SequenceScorer(task.target_dictionary)
    source, target = torch.tensor([[5, 8, 6, 2]]), torch.tensor([[7, 9, 2]])
    sample = {"net_input": net_input(source, target), "target": target}

    def scores(voters: list) -> torch.Tensor:
        return scorer.generate(voters, sample)[0][0]["positional_scores"]

    alone = torch.stack([scores([model]) for model in ensemble])
    torch.testing.assert_close(scores(ensemble), alone.logsumexp(0) - math.log(2))
    without("scores of ensembles")
    with pytest.raises(TypeError):
        scores(ensemble)


class Epochs(ListDataset):
    """Two sentences that are the number of the epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.dataset = [epoch, epoch]


def sentences_of_two_epochs() -> list[int]:
    how = {"num_workers": 1, "reuse_dataloader": True, "buffer_size": 0}
    iterator = EpochBatchIterator(Epochs([0, 0]), list, [[0], [1]], **how)
    return [number for _ in range(2) for (number,) in iterator.next_epoch_itr()]


def test_workers_see_the_data_of_each_epoch(without: Callable[[str], None]) -> None:
    assert sentences_of_two_epochs() == [1, 1, 2, 2]
    without("batches of each epoch")
    assert sentences_of_two_epochs() == [1, 1, 1, 1]


def test_weights_that_were_changed_in_a_checkpoint_stay() -> None:
    exact = torch.tensor([1.0001, 2.0])
    restore, half = models.restore_half_precision.wrapper(lambda *words: None), exact.bfloat16()
    for saved, expected in ((exact, exact), (exact + 1, half.float())):
        weights = {"fp16_params": [half], "fp32_params": [torch.nn.Parameter(half.float())]}
        restore(optimizer := SimpleNamespace(scaler=None, **weights), {"fp32_params": [saved]})
        assert torch.equal(optimizer.fp32_params[0].data, expected)


def shard_of(count: int, shard: int, shards: int, **how: bool) -> EpochBatchIterator:
    """The iterator of a process over batches of one number each."""
    batches = [[number] for number in range(count)]
    how = {"num_shards": shards, "shard_id": shard, **how}
    return EpochBatchIterator(ListDataset(range(count)), list, batches, **how)


def grouped_batches(shards: int) -> list[int]:
    """The numbers of seven batches that some processes get in an epoch, all together."""
    iterators = (shard_of(7, shard, shards, grouped_shuffling=True) for shard in range(shards))
    return [number for each in iterators for batch in each.next_epoch_itr() for number in batch]


@pytest.mark.parametrize("shards", [2, 3])
def test_the_last_group_of_batches_is_kept(shards: int, without: Callable[[str], None]) -> None:
    assert sorted(grouped_batches(shards)) == list(range(7))
    without("batches of each epoch")
    assert len(grouped_batches(shards)) < 7


def batches_after(total: int, done: int, size: int, skip: bool) -> list[int]:
    """The batches of an epoch that are trained on after ``done`` others, in groups of ``size``."""
    batches = CountingIterator(range(done, total), start=done, total=total)
    groups = GroupedIterator(batches, size, skip)
    trained = [batch for group in groups for batch in group]
    assert not groups.has_next()
    assert not batches.has_next()  # the epoch is over
    return trained


def test_noise_follows_from_sentence_and_epoch(without: Callable[[str], None]) -> None:
    words = dictionary(24)
    sentence = torch.tensor([*range(words.nspecial, len(words)), words.eos()])
    noise = {"mask": 0.3, "mask_random": 0.1, "insert": 0.1, "rotate": 0.5, "permute_sentences": 0}
    noise |= {"replace_length": 1, "mask_length": "span-poisson", "poisson_lambda": 3}
    how = {"bpe": None, "shuffle": False, "seed": 1, **noise}
    sentences = ListDataset([sentence] * 2, np.full(2, len(sentence)))
    sentences = PrependTokenDataset(sentences, words.bos())
    dataset = DenoisingDataset(sentences, sentences.sizes, words, words.unk(), None, **how)

    def draw(index: int, epoch: int) -> list[int]:
        dataset.set_epoch(epoch)
        return dataset[index]["source"].tolist()

    torch.manual_seed(1)
    first, state = draw(0, 1), torch.get_rng_state()
    assert draw(0, 2) != first != draw(1, 1)
    assert draw(0, 1) == first
    assert torch.get_rng_state().equal(state)
    joined = SortDataset(ConcatDataset([dataset]), [np.arange(2)])  # as for several languages
    epochs = EpochBatchIterator(joined, list, [[0], [1]], num_workers=0, buffer_size=9)
    assert epochs.buffer_size == 0
    without("batches of each epoch")
    assert len({tuple(draw(0, 1)) for _ in range(9)}) > 1


@pytest.mark.parametrize("epoch", [1, 2, 3, 4, 5])
def test_a_resumed_run_continues_its_pass_over_a_multilingual_corpus(epoch: int) -> None:
    """A pass over 3 + 7 sentences takes three epochs of 4, 4 and 2."""

    def corpora() -> list[ListDataset]:
        numbers = [list(range(3)), list(range(10, 17))]
        return [ListDataset(part, np.ones((len(part), 2), int)) for part in numbers]

    uninterrupted = SampledMultiEpochDataset(corpora(), virtual_epoch_size=4, epoch=1)
    for number in range(1, epoch + 1):
        uninterrupted.set_epoch(number)
    resumed = SampledMultiEpochDataset(corpora(), virtual_epoch_size=4, epoch=epoch)
    assert len(resumed) == (2 if epoch == 3 else 4)
    for index in range(len(resumed)):
        assert resumed[index] == uninterrupted[index]


@pytest.mark.parametrize("skip", [False, True])
def test_no_batch_is_lost_by_another_update_freq(skip: bool) -> None:
    for total, done, size in itertools.product(range(1, 12), range(11), range(1, 9)):
        left = total - done
        if left > 0 and (not skip or left >= size):
            end = done + left // size * size if skip else total
            assert batches_after(total, done, size, skip) == list(range(done, end))
    with pytest.raises(ConfigError, match="drops all 3 batches that are left of this epoch"):
        batches_after(10, 7, 4, True)


def test_an_epoch_continues_on_other_processes() -> None:
    visited: list[int] = []
    for shard in range(4):
        before = shard_of(24, shard, 4)
        epoch = before.next_epoch_itr()
        visited += [index for _ in range(3) for index in next(epoch)]
        state = before.state_dict()
    for shards in (1, 2, 3, 6):
        after: list[int] = []
        for shard in range(shards):
            resumed = shard_of(24, shard, shards)
            resumed.load_state_dict(state)
            after += [index for batch in resumed.next_epoch_itr() for index in batch]
        assert sorted(visited + after) == list(range(24))
    with pytest.raises(ConfigError, match="12 batches of this epoch, which 5 cannot"):
        shard_of(24, 0, 5).load_state_dict(state)
    with pytest.raises(ConfigError, match="12 batches of this epoch, which 3 cannot"):
        shard_of(24, 0, 3, grouped_shuffling=True).load_state_dict(state)


def test_a_checkpoint_is_copied_whole_or_not_at_all(without, tmp_path, monkeypatch):
    new, last = tmp_path / "new.pt", tmp_path / "checkpoint_last.pt"

    def fill_disk(source: str, target: str) -> None:
        Path(target).write_bytes(b"torn")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def copy() -> bytes:
        new.write_bytes(b"new")
        last.write_bytes(b"old")
        with pytest.raises((OSError, EnvironmentProblem), match="No space left"):
            PathManager.copy(str(new), str(last), overwrite=True)
        return last.read_bytes()

    monkeypatch.setattr(shutil, "copyfile", fill_disk)
    assert copy() == b"old"
    assert sorted(tmp_path.iterdir()) == [last, new]
    without("whole checkpoint files")
    assert copy() == b"torn"


class LayerWithCopies(torch.nn.Module):
    """A layer that keeps and loads its weights as an encoder's layer of fairseq 0.12.2 does."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(2, 2, bias=bias)
        self.load_to_BT = False
        self.fc1_weight = torch.nn.Parameter(torch.zeros(self.fc1.weight.shape))
        self.fc1_bias = torch.nn.Parameter(torch.zeros(self.fc1.bias.shape))
        self.BT_version = True

    def _load_from_state_dict(self, state: dict, prefix: str, *rest: object) -> None:
        self.load_to_BT = True
        state[prefix + "fc1_weight"] = state[prefix + "fc1.weight"]
        state[prefix + "fc1_bias"] = state[prefix + "fc1.bias"]
        super()._load_from_state_dict(state, prefix, *rest)


class RepairedLayer(LayerWithCopies):
    __init__ = models.without_copies.wrapper(LayerWithCopies.__init__)
    _load_from_state_dict = models.load_once.wrapper(LayerWithCopies._load_from_state_dict)


def dynamic_convolution_class() -> type:
    """Return the class that fairseq uses, which fairseq 0.12.2 lacks."""
    if not hasattr(dynamic_convolution, "DynamicConv_scripatable"):
        pytest.skip("this fairseq has only the first dynamic convolution, without the faults")
    return dynamic_convolution.DynamicConv_scripatable


def test_an_unused_bias_is_not_what_memory_held(without: Callable[[str], None]) -> None:
    convolution = dynamic_convolution_class()
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        assert not convolution(4, 3, num_heads=2).conv_bias.any()
        without("unused weights that nothing initializes")
        assert convolution(4, 3, num_heads=2).conv_bias.isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("bias", [True, False])
def test_weights_are_kept_once(bias: bool) -> None:
    state = LayerWithCopies().state_dict()
    assert "fc1_weight" in state
    layer = RepairedLayer(bias)
    assert set(layer.state_dict()) == {"fc1.weight", *(["fc1.bias"] if bias else [])}
    assert not layer.BT_version
    layer.load_state_dict(state, strict=bias)
    assert not layer.load_to_BT
    assert torch.equal(layer.fc1.weight, state["fc1.weight"])


# Moving averages of the weights (``--store-ema``), of models that fairseq alone cannot average
PRE_NORM = ["--arch", "transformer", *SMALL, "--encoder-normalize-before"]


@pytest.mark.parametrize("fp32", [False, True])
@pytest.mark.parametrize("flags", [BMT, MUSE, PRE_NORM])
def test_moving_averages_keep_the_stage(flags: list[str], fp32: bool, without) -> None:
    """Weights are averaged, the stage is the model's; buffers that appear later are left out."""
    model, _ = build(flags)
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.75, ema_fp32=fp32))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data += 1
    model.set_num_updates(5)
    if flags is BMT:
        model.binary_stage.enter(1)
    model.register_buffer("centroids", torch.ones(2))
    average.step(model, 5)
    assert "centroids" not in average.get_model().state_dict()
    averaged = average.get_model().state_dict()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(averaged[name], 0.75 * before[name] + 0.25 * parameter)
    if flags is BMT:
        assert averaged["binary_stage.current"].equal(torch.tensor(1))
        assert average.get_model().encoder.layers[0].fc1.binary_weights
        without("--store-ema of every model")
        with pytest.raises(RuntimeError, match="can't be cast"):
            EMA(model, EMAConfig(ema_decay=0.5)).step(model, 5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fp32", [False, True])
def test_tied_weights_decay_once(kind: torch.dtype, fp32: bool) -> None:
    model, _ = build([*PRE_NORM, "--share-all-embeddings"])
    tied = model.to(kind).encoder.embed_tokens.weight
    assert tied is model.decoder.output_projection.weight
    torch.nn.init.zeros_(tied)
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.75, ema_fp32=fp32))
    torch.nn.init.ones_(tied)
    average.step(model, 1)
    names = {name for name, value in model.state_dict(keep_vars=True).items() if value is tied}
    assert len(names) == 3
    for state in (average.get_model().state_dict(), average.fp32_params if fp32 else {}):
        for name in names & state.keys():
            assert state[name].eq(0.25).all(), name


def test_a_resumed_run_averages_at_the_same_updates() -> None:
    """``--ema-update-freq 4``, killed after each of twelve updates."""

    def average(killed_after: int) -> torch.Tensor:
        model = torch.nn.Linear(1, 1)
        config = EMAConfig(store_ema=True, ema_decay=0.5, ema_update_freq=4, ema_start_update=3)
        torch.nn.init.zeros_(model.weight)
        actual = EMA(model, config)
        for update in range(1, 13):
            torch.nn.init.constant_(model.weight, update)
            actual.step(model, update)
            if update == killed_after:
                saved = actual.get_model().state_dict()
                actual = EMA(model, config)
                actual.restore(saved)
        return actual.get_model().weight

    uninterrupted = average(killed_after=0)
    assert uninterrupted.item() == 0.125 * 0 + 0.125 * 4 + 0.25 * 8 + 0.5 * 12
    for update in range(1, 12):
        assert average(update) == uninterrupted, update


def test_mkl_does_not_change_the_number_of_threads() -> None:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    if not hasattr(library, "mkl_serv_get_dynamic"):
        pytest.skip("this torch has no MKL, or hides its functions")
    threads = torch.get_num_threads()
    library.mkl_serv_set_dynamic(1)  # as at the start of a process
    original = Mock()
    resume.fix_threads.wrapper(original)("a", b=1)
    assert (library.mkl_serv_get_dynamic(), torch.get_num_threads()) == (0, threads)
    original.assert_called_once_with("a", b=1)


@pytest.mark.parametrize("length", [1, 3, 5, 7])
def test_dynamic_convolution_trains_as_it_translates(length, without) -> None:
    torch.manual_seed(1)
    sizes = {"kernel_size": 5, "num_heads": 2, "weight_softmax": True}
    x, state = torch.randn(length, 3, 6).double(), {}
    for padding in (2, 4):  # of an encoder and of a decoder
        convolution = dynamic_convolution_class()(6, **{**sizes, "padding_l": padding}).double()
        first = dynamic_convolution.DynamicConv1dTBC(6, **{**sizes, "padding_l": padding}).double()
        first.load_state_dict({"weight_linear.weight": convolution.weight_linear.weight})
        torch.testing.assert_close(convolution(x), first(x))
    steps = torch.cat([convolution(word, incremental_state=state) for word in x.split(1)])
    torch.testing.assert_close(convolution(x), steps)
    without("dynamic convolution of short sentences")
    assert torch.allclose(convolution(x), steps) is (length >= 5)


def test_destructors_of_data_that_were_never_opened(without: Callable[[str], None]) -> None:
    MMapIndexedDataset.__del__(SimpleNamespace())
    without("data sets that cannot be opened")
    with pytest.raises(AttributeError):
        MMapIndexedDataset.__del__(SimpleNamespace())
