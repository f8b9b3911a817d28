"""Programs in torch with static memory: what a GPU runs, here on the CPU."""

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from fairseq.models import BaseFairseqModel
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_ext.engine import NUMBERS, TORCH
from fairseq_ext.engine.devices import executor as executor_module
from fairseq_ext.engine.devices.executor import Executor, Sizes, Stage, padded
from fairseq_ext.engine.devices.operations import Model, encode
from fairseq_ext.engine.library import available_paths
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.generation import on_engine as engine
from fairseq_ext.utils.errors import DataError
from tests.support import models
from tests.support.engine import ALL, SIZE, assert_same, fairseqs, program_of, together, worker_of
from tests.support.engine import sharpened as new_sharpened
from tests.support.harness import in_a_fork

SENTENCES = models.random_sentences([9, 3, 17, 2, 6], size=SIZE)
sharpened = functools.cache(new_sharpened)
needs_native = pytest.mark.skipif(not available_paths(), reason="the engine was not compiled")
SOME = ["transformer", "gru", "gru-luong", "linformer", "muse-growing", "muse-ordinary", "bmt-1"]
SOME += ["lightconv", "dynamicconv", "lstm-bidirectional"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def require(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def executor_of(model: BaseFairseqModel, task: object, device: str = "cpu") -> Executor:
    require(device)
    dtype = next(model.parameters()).dtype
    return Executor(program_of(model, task), torch.device(device), dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SOME)
def test_like_fairseqs_generator(name: str, device: str):
    """All hypotheses, of sentences together in a batch, with scores and alignments."""
    model, task = sharpened(name)
    rules = Rules(beam=3, max_len_b=18, attention=True)
    ours = executor_of(model, task, device).translate(SENTENCES, rules)
    theirs = fairseqs(model, task, SENTENCES, beam_size=3, max_len_b=18)
    assert_same(ours, theirs, attention=True)


RULES = [
    Rules(beam=1, max_len_b=12),
    Rules(beam=3, max_len_a=0.5, max_len_b=4, lenpen=0.3),
    Rules(beam=5, max_len_b=9, lenpen=None, unkpen=0.7),
    Rules(beam=2, max_len_b=40, min_len=20, temperature=1.7),
    Rules(beam=3, max_len_b=5, min_len=0, unkpen=-4.0, lenpen=2.0),
    Rules(beam=4, max_len_b=12, lenpen=0.6, length_offset=5.0),
    Rules(beam=3, match_source_len=True, lenpen=None),
    Rules(beam=3, max_len_b=20, no_repeat_ngram_size=1),
    Rules(beam=3, max_len_b=40, no_repeat_ngram_size=3),
]


@needs_native
@pytest.mark.parametrize("prefixes", [None, [[7, 3], [], [5], [8, 2], [9] * 30]])
@pytest.mark.parametrize("name", ["transformer", "gru", "muse"])
def test_like_the_native_engine(name: str, prefixes: list[list[int]] | None):
    """Every rule, also with prefixes of several lengths and of a whole translation."""
    model, task = sharpened(name)
    executor, worker = executor_of(model, task), worker_of(model, task)
    for rules in RULES:
        if prefixes is None or rules.max_len_b != 40:
            translations = executor.translate(SENTENCES, rules, prefixes)
            assert_same(translations, worker.translate(SENTENCES, rules, prefixes))


@pytest.mark.parametrize("name", ["transformer", "gru", "linformer", "muse-growing"])
def test_batches_and_earlier_batches_change_nothing(name: str):
    """Memory is used again, whatever was in it."""
    model, task = sharpened(name)
    executor, rules = executor_of(model, task), Rules(beam=3, max_len_b=25)
    together = executor.translate(SENTENCES, rules)
    alone = [executor.translate([sentence], rules)[0] for sentence in SENTENCES]
    assert_same(alone, together)
    assert_same(executor.translate(SENTENCES[::-1], rules)[::-1], together)
    for stage in executor._stages.values():
        for tensor in stage.state.values():
            tensor.fill_(1 if tensor.dtype in (torch.bool, torch.int64) else torch.nan)
    assert_same(executor.translate(SENTENCES, rules), together)


def test_a_fork_waits_for_no_thread_of_its_parent():
    executor = executor_of(*sharpened("transformer"))

    def tokens() -> list[list[int]]:
        translations = executor.translate(SENTENCES, Rules(beam=2, max_len_b=6))
        return [hypotheses[0].tokens.tolist() for hypotheses in translations]

    expected = tokens()
    assert in_a_fork(tokens, executor._free.held()) == expected  # as while a thread translates


class Recorded(TorchDispatchMode):
    """The operations of torch with sizes; it refuses those that ask the device for a number."""

    ASKING = ("item", "_local_scalar_dense", "nonzero", "masked_select", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        assert not any(operation in name for operation in self.ASKING), name
        if name.startswith("aten.index.") and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        ):
            raise AssertionError(f"{name} by a mask has a size that the device is asked for")
        tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
        self.seen.append((name, [tuple(tensor.shape) for tensor in tensors]))
        return func(*args, **(kwargs or {}))


class Replayed:
    """As a graph is captured: the step runs at once, twice, and later only what ran then."""

    def __init__(self, step: Callable, state: dict[str, torch.Tensor]) -> None:
        self.step, self.state = step, state
        self.places = {name: tensor.data_ptr() for name, tensor in state.items()}
        for _ in range(2):
            self.step()
        self.wanted = self.record()

    def record(self) -> list:
        with Recorded() as recorded:
            self.step()
        return recorded.seen

    def __call__(self) -> None:
        assert self.record() == self.wanted
        assert {name: tensor.data_ptr() for name, tensor in self.state.items()} == self.places


@needs_native
@pytest.mark.parametrize("names", [*ALL, "transformer+gru+muse-growing", "linformer+bmt-1"])
def test_every_architecture_in_steps_that_can_be_captured(names, monkeypatch):
    """As the native engine, by the same operations on tensors of the same places in each step.

    So replaying what one step launched is any other step; and none asks the device anything.
    """
    voters, task = together(names)
    monkeypatch.setattr(executor_module, "LEAST_STEPS", 4)  # so that memory grows in few steps
    how = {"min_len": 5, "max_len_b": 8, "no_repeat_ngram_size": 2, "temperature": 1.4}
    rules = Rules(beam=2, attention=True, **how)
    captures: list[Replayed] = []

    def capture(step: Callable, device: torch.device) -> Callable:
        state = dict(zip(step.__code__.co_freevars, step.__closure__, strict=True))["state"]
        captures.append(Replayed(step, state.cell_contents))
        return captures[-1]

    monkeypatch.setattr(executor_module, "captured", capture)
    executor = Executor(program_of(voters, task), torch.device("cpu"))
    executor.translate(SENTENCES[:2], rules)
    assert not captures  # nothing is captured that is needed once
    executor.translate(SENTENCES[:3], rules)
    ours = executor.translate(SENTENCES[:3], rules)
    expected = worker_of(voters, task).translate(SENTENCES[:3], rules)
    assert_same(ours, expected, attention=True)
    assert len(captures) > 1  # memory grew


class Imagined(TorchFunctionMode):
    """torch without CUDA can copy nothing on a device that it imagines; it can add."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.copy_:
            return args[0].mul_(0).add_(args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [*SOME, "linformer-convolution", "bmt-8-unsigned", "xnor-base"])
def test_all_tensors_are_on_the_device(name: str):
    """On a CUDA device that torch only imagines: tensors without numbers, but with devices."""
    program, rules = program_of(*sharpened(name)), Rules(beam=2, attention=True)
    device = torch.device("cuda", 0)

    with FakeTensorMode(), Imagined(), torch.no_grad():
        imagined_model = Model(program, device, torch.float16)
        words = padded(SENTENCES, 1).to(device)
        registers = encode(imagined_model, words, words.ne(1))
        stage = Stage(imagined_model, rules, Sizes(6, 17, 16))
        stage.run()
        stage.run()
        tensors = [*registers.values(), *stage.state.values()]
        assert {tensor.device for tensor in tensors} == {device}
        assert {tensor.dtype for tensor in registers.values()} == {torch.float16}


def generator_of(model: BaseFairseqModel, task: object, **how: object) -> object:
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=3, max_len_b=15)
    numbers = how.pop("numbers", "fp32")
    for name, value in how.items():
        setattr(generator, name, value)
    return engine.with_engine(generator, [model], task.target_dictionary, numbers)


def test_what_is_left_to_fairseqs_generator(caplog: pytest.LogCaptureFixture):
    model, task = sharpened("transformer")
    caplog.set_level("INFO")
    assert isinstance(generator_of(model, task, numbers=TORCH)._open(), Executor)
    sampling = Sampling(task.target_dictionary)
    assert type(generator_of(model, task, numbers=TORCH, search=sampling)) is SequenceGenerator
    assert "`--engine torch` has no shortlists, constraints or samples" in caplog.text
    plain = generator_of(model, task, numbers=TORCH)  # a beam search that has no constraints
    with pytest.raises(NotImplementedError):
        plain.generate(
            [model], models.sample_of(SENTENCES[:1]), constraints=torch.ones(1, 3).long()
        )
    assert "`--engine torch` has no constraints" in caplog.text
    scorer = SequenceScorer(task.target_dictionary)
    assert engine.with_engine(scorer, [model], task.target_dictionary, TORCH) is scorer
    assert "the engine scores no references" in caplog.text


@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_model_on_a_gpu_is_fairseqs_unless_asked_for(numbers, monkeypatch, caplog):
    """Here the CPU passes for a GPU."""
    monkeypatch.setattr(engine, "on_a_device", lambda model: True)
    caplog.set_level("INFO")
    assert type(generator_of(*sharpened("transformer"), numbers=numbers)) is SequenceGenerator
    assert "the model is on a GPU, where only `--engine torch` runs our engine" in caplog.text


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["transformer", "gru", "linformer", "muse", "bmt-1"])
def test_commands_on_cuda_in_half_precision(name: str):
    """From fairseq's batch on the GPU to hypotheses, in graphs."""
    require("cuda")
    model, task = sharpened(name)
    cuda_model = copy.deepcopy(model).cuda().half()
    sample = models.sample_of(SENTENCES)
    expected = generator_of(model, task).generate([model], sample)
    sample["net_input"] = {name: tensor.cuda() for name, tensor in sample["net_input"].items()}
    ours = generator_of(cuda_model, task, numbers=TORCH)
    translations = ours.generate([cuda_model], sample)
    assert isinstance(ours._teams[0], Executor)
    for (our_best, *_), (their_best, *_) in zip(translations, expected, strict=True):
        assert float(our_best["score"]) == pytest.approx(float(their_best["score"]), abs=0.1)


@pytest.mark.parametrize("name", ["transformer", "gru", "linformer", "muse"])
def test_half_precision(name: str):
    """The model's own type, with sums and probabilities in fp32: as near as fairseq's half is."""
    model, task = sharpened(name)
    sentences, rules = models.random_sentences([6, 6], size=SIZE), Rules(beam=2, max_len_b=8)
    exact = executor_of(model, task).translate(sentences, rules)
    halved = executor_of(copy.deepcopy(model).half(), task).translate(sentences, rules)
    for exact_hypotheses, halved_hypotheses in zip(exact, halved, strict=True):
        assert halved_hypotheses[0].score == pytest.approx(exact_hypotheses[0].score, abs=0.02)
        assert halved_hypotheses[0].score != exact_hypotheses[0].score  # it is no fp32


@pytest.mark.parametrize("sentence", [[], [2] * 2000, [4, 40, 2], [-1, 2]])
@pytest.mark.parametrize("device", ["the native engine", *DEVICES])
def test_sentences_that_cannot_be_read(device: str, sentence: list[int]):
    model, task = models.build(ALL["transformer"], size=SIZE)
    of_native = device == "the native engine"
    engine = worker_of(model, task) if of_native else executor_of(model, task, device)
    with pytest.raises(DataError):
        engine.translate([[4, 2], sentence], Rules())
    with pytest.raises(DataError, match="prefix"):
        engine.translate([[4, 2]], Rules(), [[40]])
    assert engine.translate([], Rules()) == []
