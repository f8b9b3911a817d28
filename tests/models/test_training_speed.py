"""Faster updates have fairseq's own numbers: the loss in chunks, Adam, bf16, dropout."""

import copy
import logging
import re
import traceback
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq import utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    label_smoothed_nll_loss,
)
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from fairseq.optim.fp16_optimizer import FP16Optimizer
from fairseq.trainer import Trainer
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_ext.base.dropout import dropout
from fairseq_ext.binary.distillation import distillation_loss
from fairseq_ext.plugin import patching
from fairseq_ext.plugin.checks import training_options
from fairseq_ext.plugin.features import speed
from fairseq_ext.training import adam, chunked_output, loss, onednn_matmul
from fairseq_ext.training.loss import OutputLayer
from fairseq_ext.utils.errors import CheckpointError, ConfigError
from tests.support import models
from tests.support.harness import USER_DIR, run
from tests.support.trainings import ARCHITECTURES, TRAINING, plugin_without

PAD = 1
STOCK = {
    "transformer": ["--arch", "transformer", *models.SMALL],
    "transformer, tied": ["--arch", "transformer", *models.SMALL, "--share-all-embeddings"],
    "lstm": ["--arch", "lstm", "--decoder-out-embed-dim", "9", "--decoder-embed-dim", "8"],
    "lstm, tied": [
        *("--arch", "lstm", "--share-decoder-input-output-embed"),
        *("--decoder-embed-dim", "8", "--decoder-out-embed-dim", "8"),
    ],
}
EVERY = STOCK | models.ARCHITECTURES


def criterion(kind: type, **options: Any) -> Any:
    task = SimpleNamespace(target_dictionary=models.dictionary())
    return kind(task, False, **options)


def without_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give fairseq's criterions their own methods back, and a softmax that is not always fp32."""
    monkeypatch.setattr(utils, "log_softmax", lambda x, dim, **unused: x.log_softmax(dim))
    for kind in (LabelSmoothedCrossEntropyCriterion, CrossEntropyCriterion):
        monkeypatch.setattr(kind, "forward", kind.forward.__wrapped__)


def outcome(criterion: Any, model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The numbers that the criterion logs, and the gradient of every parameter."""
    model.zero_grad()
    torch.manual_seed(5)  # for the dropout
    actual, sample_size, logged = criterion(model, models.batch())
    (actual / sample_size).backward()
    return logged, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


CRITERIONS: tuple[tuple[type, dict[str, Any]], ...] = (
    (LabelSmoothedCrossEntropyCriterion, {"label_smoothing": 0.1}),
    (LabelSmoothedCrossEntropyCriterion, {"label_smoothing": 0.3, "ignore_prefix_size": 2}),
    (CrossEntropyCriterion, {}),
)


@pytest.mark.parametrize("name", EVERY)
def test_every_architecture_has_the_loss_and_gradients_of_fairseq(name, monkeypatch):
    model = models.build(EVERY[name])[0].double().train()
    judges = [criterion(kind, **options) for kind, options in CRITERIONS]
    assert [speed.obstacle(judge, model) for judge in judges] == [None] * len(judges)
    ours = [outcome(judge, model) for judge in judges]
    assert not chunked_output.is_deferred(model)
    without_chunks(monkeypatch)
    for judge, (logged, gradients) in zip(judges, ours, strict=True):
        expected, expected_gradients = outcome(judge, model)
        assert logged.keys() == expected.keys()
        for key, value in expected.items():
            assert float(logged[key]) == pytest.approx(float(value), rel=1e-12), key
        assert gradients.keys() == expected_gradients.keys()
        for key, value in expected_gradients.items():
            torch.testing.assert_close(gradients[key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["transformer, tied", "lstm, tied", "muse"])
def test_tied_embeddings_add_their_rows_to_the_gradient_of_the_output_layer(name, monkeypatch):
    tied = [] if "tied" in name else ["--share-all-embeddings"]
    model = models.build([*EVERY[name], *tied])[0].double().train()
    weight = model.decoder.embed_tokens.weight
    tables = [part.embed_tokens for part in (model.encoder, model.decoder)]
    shared = [table for table in tables if table.weight is weight]
    add_rows = mock.Mock(wraps=chunked_output._add_rows)
    monkeypatch.setattr(chunked_output, "_add_rows", add_rows)
    judge = criterion(LabelSmoothedCrossEntropyCriterion, label_smoothing=0.1)
    outcome(judge, model)
    assert add_rows.call_count == len(shared)
    assert "forward" not in vars(model.decoder.embed_tokens)  # only within the loss

    add_rows.reset_mock()
    hook = weight.register_hook(lambda grad: grad * 0)  # a hook of torch sees all of the gradient
    outcome(judge, model)
    hook.remove()
    assert weight.grad is not None
    assert not weight.grad.any()
    for option in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}):
        with mock.patch.multiple(shared[-1], **option):
            assert shared[-1] not in chunked_output._tied_embeddings(model)
    assert not add_rows.called


def test_embeddings_may_be_changed_in_place():
    table = torch.nn.Embedding(5, 3, padding_idx=PAD).double()
    tokens = torch.tensor([[0, 4, PAD], [4, 2, 0]])
    gradients = []
    for lookup in (table, lambda tokens: chunked_output._embed(table, tokens)):
        table.weight.grad = None
        x = lookup(tokens)
        x *= 3
        x.pow(2).sum().backward()
        gradients.append(table.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_half_precision_that_needs_a_loss_scale_has_fairseqs_loss() -> None:
    """A chunk rounds its gradients before the scale could save small ones."""
    judge = criterion(LabelSmoothedCrossEntropyCriterion, label_smoothing=0.1)
    model = models.build(EVERY["transformer"])[0]
    assert speed.obstacle(judge, model.bfloat16()) is None
    assert speed.obstacle(judge, model.half()) == "--fp16"


SIZES, CHUNKS = st.integers(1, 40), st.integers(1, 300)


@given(SIZES, st.integers(2, 40), CHUNKS, CHUNKS, st.floats(0, 0.9), st.booleans())
def test_chunks_of_any_size(words, size, chunk, block, epsilon, bias):
    """Against fairseq's function, in float64: values and all gradients."""
    draw = torch.Generator().manual_seed(words * size)
    features = torch.randn(words, 3, generator=draw, dtype=torch.float64).requires_grad_()
    weight = torch.randn(size, 3, generator=draw, dtype=torch.float64).requires_grad_()
    constant = torch.randn(size, generator=draw, dtype=torch.float64).requires_grad_()
    target = torch.randint(size, (words,), generator=draw)
    inputs = [features, weight, constant] if bias else [features, weight]
    output = OutputLayer(*inputs)
    logits = output.logits()
    expected = label_smoothed_nll_loss(logits.log_softmax(-1), target, epsilon, ignore_index=PAD)
    with mock.patch.multiple(loss, BLOCK=block, CHUNK=chunk):
        actual = loss.smoothed_nll(output, target, epsilon, PAD)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs.detach() if ours is actual[1] else theirs)
    gradients = torch.autograd.grad(expected[0] * 0.7, inputs)
    torch.testing.assert_close(torch.autograd.grad(actual[0] * 0.7, inputs), gradients)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("block", [1, 40, 60])
def test_distillation_in_chunks(temperature, weight, block, monkeypatch):
    monkeypatch.setattr(loss, "BLOCK", block)
    monkeypatch.setattr(loss, "CHUNK", 60)
    draw = torch.Generator().manual_seed(1)
    student, teacher = (
        OutputLayer(
            torch.randn(2, 11, width, generator=draw, dtype=torch.float64).requires_grad_(),
            torch.randn(17, width, generator=draw, dtype=torch.float64).requires_grad_(),
        )
        for width in (5, 3)
    )
    target = torch.randint(17, (2, 11), generator=draw)
    words = target.ne(PAD)
    logits = student.logits()[words]
    hard = torch.nn.functional.cross_entropy(logits, target[words], reduction="sum")
    soft = distillation_loss(student.logits(), teacher.logits(), temperature)[words].sum()
    expected = torch.lerp(hard, soft, weight)
    actual, nll = loss.distilled_nll(student, teacher, target, temperature, weight, PAD)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(nll, hard.detach())
    inputs = student[:2]
    torch.testing.assert_close(
        torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, inputs)
    )


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_validation_computes_no_gradient(mode, monkeypatch):
    """Although the weight of the output layer is a parameter, which asks for one everywhere."""
    draw = torch.Generator().manual_seed(1)
    output = OutputLayer(
        torch.randn(11, 5, generator=draw),
        torch.nn.Parameter(torch.randn(17, 5, generator=draw)),
        torch.nn.Parameter(torch.randn(17, generator=draw)),
    )
    target = torch.randint(17, (11,), generator=draw)
    smoothed = loss.smoothed_nll(output, target, 0.1)
    distilled = loss.distilled_nll(output, output, target)
    products = mock.Mock()
    monkeypatch.setattr(loss, "_add_product", products)
    with mode():
        assert loss.smoothed_nll(output, target, 0.1) == smoothed
        assert loss.distilled_nll(output, output, target) == distilled
    products.assert_not_called()


def test_a_word_that_is_all_but_impossible() -> None:
    """Probabilities that fp32 rounds to zero have finite losses, as in fairseq."""
    features = torch.tensor([[1.0], [-1.0]]).requires_grad_()
    output = OutputLayer(features, torch.tensor([[300.0], [-300.0], [0.0]]))
    target = torch.tensor([1, 1])
    actual, _ = loss.smoothed_nll(output, target, 0.1)
    expected, _ = label_smoothed_nll_loss(output.logits().log_softmax(-1), target, 0.1)
    torch.testing.assert_close(actual, expected)
    assert actual.isfinite()
    actual.backward()
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_fp32(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK", 200)
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(64, 8, generator=draw).to(kind).requires_grad_()
    weight = torch.randn(50, 8, generator=draw).to(kind).requires_grad_()
    target = torch.randint(50, (64,), generator=draw)
    output = OutputLayer(features, weight)
    expected, _ = label_smoothed_nll_loss(output.logits().log_softmax(-1), target, 0.1)
    actual, _ = loss.smoothed_nll(output, target, 0.1)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected.sum())
    ours = torch.autograd.grad(actual, (features, weight))
    theirs = torch.autograd.grad(expected.sum(), (features, weight))
    for mine, stock in zip(ours, theirs, strict=True):
        assert mine.dtype == kind
        error = (mine - stock).float().norm() / stock.float().norm()
        assert error < 2 * torch.finfo(kind).eps


def test_what_needs_logits_gets_them() -> None:
    """Adaptive softmax, other output layers and criterions of others keep fairseq's way."""
    judge = criterion(LabelSmoothedCrossEntropyCriterion, label_smoothing=0.1)
    model = models.build(STOCK["transformer"])[0]

    class Other(LabelSmoothedCrossEntropyCriterion):
        def compute_loss(self, model: Any, net_output: Any, *rest: Any, **options: Any) -> Any:
            assert net_output[0].size(-1) == 30
            return super().compute_loss(model, net_output, *rest, **options)

    outcome(criterion(Other, label_smoothing=0.1), model)
    assert "the loss of Other" in str(speed.obstacle(criterion(Other, label_smoothing=0), model))
    exact = criterion(LabelSmoothedCrossEntropyCriterion, label_smoothing=0, report_accuracy=True)
    assert speed.obstacle(exact, model) == "--report-accuracy"
    kind = type(model.decoder)
    model.decoder.__class__ = type("Louder", (kind,), {"output_layer": lambda self, x: x})
    assert speed.obstacle(judge, model) == "the output layer of Louder"
    forward = {"forward": lambda self, *words, **options: kind.forward(self, *words, **options)}
    model.decoder.__class__ = type("Biased", (kind,), forward)
    assert speed.obstacle(judge, model) == "the forward pass of Biased"
    model.decoder.__class__ = kind
    model.decoder.output_layer = torch.nn.Identity().forward
    assert speed.obstacle(judge, model) == "an output layer of its own"
    del model.decoder.output_layer
    model.decoder.adaptive_softmax = torch.nn.Identity()
    assert speed.obstacle(judge, model) == "adaptive softmax"


def test_adam_makes_the_steps_of_fairseq() -> None:
    """Also with weight decay, gradients that are missing now and then, and a state of fairseq's."""
    draw = torch.Generator().manual_seed(2)
    shapes = [(7, 5), (11,), (3, 4, 2), (1,)]
    first = [torch.nn.Parameter(torch.randn(s, generator=draw)) for s in shapes]
    second = copy.deepcopy(first)
    settings = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-4, "weight_decay": 0.1}
    stock, fused = Adam(first, **settings), Adam(second, **settings)
    plain = Adam.step.__wrapped__
    for number in range(60):
        for place, (mine, other) in enumerate(zip(first, second, strict=True)):
            if place == number % 5:
                mine.grad = other.grad = None
                continue
            mine.grad = torch.randn(mine.shape, generator=draw) * 10 ** (number % 7 - 5)
            other.grad = mine.grad.clone()
        plain(stock)
        adam.step(fused)
        if number == 30:
            stock, fused = Adam(first, **settings), Adam(second, **settings)
            state = copy.deepcopy(stock.state_dict())
            fused.load_state_dict(state)
            stock.load_state_dict(copy.deepcopy(state))
    torch.testing.assert_close(second, first, rtol=2e-5, atol=2e-6)
    ours, theirs = fused.state_dict()["state"], stock.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for key in theirs:
        assert ours[key].keys() == theirs[key].keys()
        assert ours[key]["step"] == theirs[key]["step"]


def test_adam_writes_into_no_moment_of_another_shape() -> None:
    """torch loads any, and its kernel would write beyond the shorter one."""
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    weight.grad = torch.ones(2, 3)
    optimizer = Adam([weight])
    around = torch.zeros(12)
    for moment in (around[:3], around.view(3, 4), around[:0], None, [0.0] * 6):
        state = {"step": 1, "exp_avg": moment, "exp_avg_sq": torch.zeros(2, 3)}
        optimizer.state[weight] = state
        with pytest.raises(CheckpointError, match="as a moment of a weight of"):
            adam.step(optimizer)
        assert not around.any()
        assert not weight.any()


def test_adam_reads_moments_of_any_layout() -> None:
    """One is transposed, and all numbers of the other are the same place in memory."""
    draw = torch.Generator().manual_seed(3)
    transposed = torch.rand(3, 4, generator=draw).t()
    one_number = torch.ones(1).expand(4, 3)
    odd, plain = (torch.nn.Parameter(torch.ones(4, 3)) for _ in range(2))
    odd.grad, plain.grad = torch.ones(4, 3), torch.ones(4, 3)
    ours, theirs = Adam([odd]), Adam([plain])
    ours.state[odd] = {"step": 5, "exp_avg": transposed, "exp_avg_sq": one_number}
    moments = (transposed.contiguous(), one_number.contiguous())
    theirs.state[plain] = {"step": 5, "exp_avg": moments[0], "exp_avg_sq": moments[1]}
    adam.step(ours)
    Adam.step.__wrapped__(theirs)
    torch.testing.assert_close(odd, plain)
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(ours.state[odd][name], theirs.state[plain][name])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("without_gradient", [False, True])
def test_fp32_copies_equal_fairseqs(flat: bool, without_gradient: bool) -> None:
    """Also if a weight is not trained, or has no gradient."""
    draw = torch.Generator().manual_seed(6)
    shapes = [(5, 3), (4,), (2, 2, 2)]
    states = []
    for plain in (False, True):
        draw.manual_seed(6)
        weights = [torch.nn.Parameter(torch.randn(s, generator=draw).bfloat16()) for s in shapes]
        weights[1].requires_grad = flat
        for weight in weights[: 2 if without_gradient else 3]:
            weight.grad = torch.randn(weight.shape, generator=draw).bfloat16()
        values = torch.randn(27, generator=draw)
        copies = [torch.nn.Parameter(part) for part in values.split([15, 4, 8])]
        for copied, weight in zip(copies, weights, strict=True):
            copied.data = copied.data.view_as(weight)
            copied.grad = torch.zeros_like(copied)
        if flat:
            copies = {None: torch.nn.Parameter(values)}  # as on one GPU
            copies[None].grad = torch.ones(27)
        optimizer = object.__new__(FP16Optimizer)
        optimizer.fp16_params, optimizer.fp32_params = weights, copies
        optimizer._needs_sync = True
        for method in ("_sync_fp16_grads_to_fp32", "_sync_fp32_params_to_fp16"):
            patched = getattr(FP16Optimizer, method)
            (patched.__wrapped__ if plain else patched)(optimizer)
        assert not optimizer._needs_sync
        tensors = list(copies.values()) if flat else copies
        states.append([*(copied.grad for copied in tensors), *weights])
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_norm_of_gradients_equals_torchs() -> None:
    """The norm of dense and sparse gradients, which fairseq calls where it would call apex."""
    draw = torch.Generator().manual_seed(7)
    gradients = [torch.randn(s, generator=draw) for s in ((7, 5), (11,), ())]
    exact = torch.cat([part.flatten().double() for part in gradients]).norm()
    weights = [torch.nn.Parameter(torch.zeros_like(part)) for part in gradients]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    weights[0].grad = gradients[0].to_sparse()
    torch.testing.assert_close(utils.clip_grad_norm_(weights, 0.0).double(), exact)
    assert utils.multi_tensor_total_norm is speed.total_norm
    assert utils.multi_tensor_l2norm_available


def test_an_update_is_seeded_as_by_fairseq_without_a_trace(monkeypatch) -> None:
    common, draws = SimpleNamespace(seed=3), []
    trainer = SimpleNamespace(device=torch.device("cpu"), cfg=SimpleNamespace(common=common))
    trainer.get_num_updates = lambda: 4
    Trainer._set_seed.__wrapped__(trainer)
    draws.append(torch.rand(5))
    monkeypatch.setattr(traceback, "format_stack", mock.Mock(side_effect=AssertionError))
    Trainer._set_seed(trainer)
    draws.append(torch.rand(5))
    assert torch.equal(*draws)


def test_modes_are_changed_only_where_they_differ(monkeypatch) -> None:
    model, _ = models.build(STOCK["transformer"])
    assert not any(module.training for module in model.modules())
    model.train()
    model.decoder.layers[0].fc1.eval()
    assert model.train() is model
    assert all(module.training for module in model.modules())
    monkeypatch.setattr(torch.nn.Module, "train", mock.Mock(side_effect=AssertionError))
    assert model.train() is model


@pytest.mark.parametrize("max_norm", [0.0, 0.01, 1e6])
def test_adam_scales_gradients_as_fairseq(max_norm: float) -> None:
    """The norm, the step, and the gradients after it; a factor ends with its update."""
    draw = torch.Generator().manual_seed(4)
    cfg = FairseqAdamConfig(adam_betas="(0.9, 0.98)", lr=[0.01])
    first = [torch.nn.Parameter(torch.randn(s, generator=draw)) for s in ((7, 5), (11,), (2,))]
    second = copy.deepcopy(first)
    ours, theirs = FairseqAdam(cfg, first), FairseqAdam(cfg, second)
    for factor in (torch.tensor(0.25), 1 / 7):
        ours.multiply_grads(factor)
        ours.zero_grad()  # an update that was given up
        for mine, other in zip(first[:2], second[:2], strict=True):
            mine.grad = torch.randn(mine.shape, generator=draw)
            other.grad = mine.grad.clone()
        before = [weight.grad.clone() for weight in first[:2]]
        ours.multiply_grads(factor)
        FairseqAdam.multiply_grads.__wrapped__(theirs, factor)
        norm = ours.clip_grad_norm(max_norm)
        assert [weight.grad.tolist() for weight in first[:2]] == [g.tolist() for g in before]
        expected = FairseqAdam.clip_grad_norm.__wrapped__(theirs, max_norm)
        torch.testing.assert_close(norm, expected)
        ours.step()
        Adam.step.__wrapped__(theirs.optimizer)
        torch.testing.assert_close(
            [weight.grad for weight in first[:2]], [weight.grad for weight in second[:2]]
        )
        torch.testing.assert_close(first, second)
    assert not hasattr(ours.optimizer, "grad_factor")


def test_gradients_that_adam_cannot_scale_are_left_to_fairseq() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = FairseqAdam(FairseqAdamConfig(adam_betas="(0.9, 0.98)", lr=[0.01]), [weight])
    optimizer.optimizer.param_groups[0]["amsgrad"] = True
    weight.grad = torch.full((4,), 2.0)
    optimizer.multiply_grads(0.5)
    assert weight.grad.tolist() == [1.0] * 4
    assert optimizer.clip_grad_norm(1.0).item() == 2.0
    torch.testing.assert_close(weight.grad, torch.full((4,), 0.5))


def test_adam_leaves_other_types_to_fairseq() -> None:
    for kind in (torch.bfloat16, torch.float64):
        assert not adam.can_fuse(Adam([torch.nn.Parameter(torch.ones(2, dtype=kind))]))
    weight = torch.nn.Parameter(torch.ones(2))
    assert adam.can_fuse(Adam([weight]))
    assert not adam.can_fuse(Adam([weight], amsgrad=True))


def test_it_is_measured_here():
    ready, converted = (onednn_matmul.times_as_long(converted) for converted in (False, True))
    assert ready > 0
    assert converted > 0


@pytest.mark.parametrize(
    ("ratio", "option", "device", "master", "warning"),
    [
        (2.46, "bf16", "cpu", True, "--bf16: on this processor matrix products take 2.5 times"),
        (2.46, "bf16_products", "cpu", True, "--bf16-products: on this processor"),
        (0.5, "bf16", "cpu", True, ""),
        (2.46, "", "cpu", True, ""),
        (2.46, "bf16", "cuda", True, ""),
        (2.46, "bf16_products", "cpu", False, ""),
    ],
)
def test_the_warning(ratio, option, device, master, warning, monkeypatch, caplog):
    monkeypatch.setattr(onednn_matmul, "times_as_long", lambda converted: ratio)
    trainer = SimpleNamespace(device=torch.device(device), is_data_parallel_master=master)
    cfg = SimpleNamespace(
        common=SimpleNamespace(bf16=option == "bf16"),
        optimization=SimpleNamespace(bf16_products=option == "bf16_products"),
    )
    start = speed.warn_of_slow_bf16.wrapper(lambda *arguments: None)
    with caplog.at_level(logging.WARNING):
        start(trainer, cfg, None, torch.nn.Linear(2, 2))
    assert warning in caplog.text
    assert bool(caplog.text) == bool(warning)


def test_dropout_of_fairseq_draws_sixteen_bits() -> None:
    """As ``dropout`` does, which test_muse_layers.py tests."""
    module, x, drawn = FairseqDropout(0.3).train(), torch.ones(200_000), []
    for drop in (module, lambda x: dropout(x, 0.3)):
        torch.manual_seed(0)
        drawn.append(drop(x))
    assert drawn[0].equal(drawn[1])
    assert module.eval()(x) is x


NO_DROPOUT = {
    name: [word for option in options for word in (f"--{option}", 0)]
    for name, options in {
        "transformer": ["dropout"],
        "lstm": [f"{side}coder-dropout-{end}" for side in ("en", "de") for end in ("in", "out")],
        "muse_tiny": ["dropout"],
    }.items()
}


@pytest.mark.parametrize("name", NO_DROPOUT)
def test_a_training_has_the_losses_that_it_has_without(name, copy_data, tmp_path):
    plain = plugin_without(tmp_path, *(patch.name for patch in patching.patches_of(speed)))
    flags = [*ARCHITECTURES[name], *TRAINING, *NO_DROPOUT[name], "--clip-norm", 0.5]
    flags += ["--lr", 0.002, "--max-update", 15, "--no-save", "--log-format", "json"]
    flags += ["--save-dir", tmp_path]  # which is locked, though nothing is saved there
    losses = []
    for plugin in (USER_DIR, plain):
        done = run("fairseq-train", copy_data, *flags, "--user-dir", plugin)
        logged = re.findall(r'"loss": "([0-9.]+)"', done.stdout + done.stderr)
        losses.append([*map(float, logged)])
    assert len(losses[0]) >= 15
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=2e-3)  # fairseq logs three decimals
    assert losses[0][-1] < losses[0][0]


def test_a_training_in_bf16_products(copy_data, tmp_path):
    """Weights stay in fp32, losses change a little, and fairseq-validate has the same loss."""
    flags = [*ARCHITECTURES["transformer"], *TRAINING, *NO_DROPOUT["transformer"]]
    flags += ["--user-dir", USER_DIR, "--max-update", 15, "--log-format", "json", "--lr", 0.002]
    flags += ["--encoder-embed-dim", 128, "--decoder-embed-dim", 128, "--max-tokens", 2000]
    logs = {}
    for name, more in (("fp32", ()), ("bf16", ["--bf16-products"])):
        done = run("fairseq-train", copy_data, *flags, "--save-dir", tmp_path / name, *more)
        logs[name] = done.stdout + done.stderr
    losses = {
        name: [float(loss) for loss in re.findall(r'"loss": "([0-9.]+)"', log)]
        for name, log in logs.items()
    }
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.01)
    path = tmp_path / "bf16" / "checkpoint_last.pt"
    state = torch.load(path, weights_only=False)
    assert state["cfg"]["optimization"]["bf16_products"]
    assert {weight.dtype for weight in state["model"].values()} == {torch.float32}
    logged = re.findall(r'"valid_loss": "([0-9.]+)"', logs["bf16"])[-1]
    validate = ["--task", "translation", "--max-tokens", 2000, "--path", path, "--cpu"]
    done = run("fairseq-validate", copy_data, *validate, "--user-dir", USER_DIR)
    (again,) = re.findall(r"\| loss ([0-9.]+) \|", done.stdout + done.stderr)
    assert float(again) == pytest.approx(float(logged), abs=2e-3)


@pytest.mark.parametrize(
    ("option", "has_cuda", "is_new", "fault"),
    [
        ("bf16", False, True, "does not go with `--bf16`; leave one out"),
        ("memory-efficient-bf16", False, True, "does not go with `--memory-efficient-bf16`"),
        ("fp16", True, True, "does not go with `--fp16`"),
        ("amp", True, True, "does not go with `--amp`"),
        ("bf16-products", False, False, "update torch"),
        ("bf16-products", True, True, "for training on a CPU"),
        ("bf16-products", False, True, None),
    ],
)
def test_bf16_products_need_a_cpu_and_fp32(option, has_cuda, is_new, fault, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(onednn_matmul, "is_replaceable", lambda: is_new)
    flags = ["--arch", "gru_tiny", "--optimizer", "adam", "--max-tokens", "9", "--bf16-products"]
    cfg = models.configuration([*flags, f"--{option}"])
    with nullcontext() if fault is None else pytest.raises(ConfigError, match=fault):
        training_options.refuse(cfg)
