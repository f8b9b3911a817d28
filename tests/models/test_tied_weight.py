"""Embeddings that are the output layer's weights: one gradient, that of torch."""

import contextlib
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from fairseq_ext.training import chunked_output, tied_weight
from fairseq_ext.training.loss import OutputLayer, smoothed_nll
from fairseq_ext.training.tied_weight import tied
from tests.support import models

PAD, V, C = 1, 13, 5
TOKENS = torch.tensor([[1, 1, 4, 12, 4], [4, 7, 1, 2, 1]])
TARGET = torch.tensor([[3, 4, 12, 2, 1], [7, 7, 2, 1, 1]])
TIED = ["--arch", "transformer", *models.SMALL, "--share-all-embeddings"]


class Model(nn.Module):
    """A sum of two lookups and a product with the same table, which a third product reads, too."""

    def __init__(self, has_third_product: bool = False, width: int = C) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.source = nn.Embedding(V, width, PAD).double()
        self.target = nn.Embedding(V, width, PAD, _weight=self.source.weight.detach()).double()
        self.target.weight = self.source.weight
        self.has_third_product = has_third_product
        self.scale = torch.ones(width, dtype=torch.float64)

    def loss(self, chunk: int = 2 * V) -> Tensor:
        weight = self.source.weight
        with tied(self, weight) as shared:
            features = self.source(TOKENS) + self.target(TOKENS.flip(1)).sin()
            if self.has_third_product:
                features = features + F.linear(features, weight) @ weight.tanh()
            output = OutputLayer(features * self.scale, weight, tied=shared)
            return smoothed_nll(output, TARGET, 0.1, PAD, chunk)[0]

    def expected(self) -> Tensor:
        """The gradient as torch sums it, without a tied weight."""
        weight = self.source.weight.detach().clone().requires_grad_()
        features = F.embedding(TOKENS, weight, PAD) + F.embedding(TOKENS.flip(1), weight, PAD).sin()
        if self.has_third_product:
            features = features + F.linear(features, weight) @ weight.tanh()
        output = OutputLayer(features, weight)
        return torch.autograd.grad(smoothed_nll(output, TARGET, 0.1, PAD)[0], weight)[0]


@pytest.mark.parametrize("has_third_product", [False, True])
@pytest.mark.parametrize("chunk", [1, 2 * V, 100 * V])
@pytest.mark.parametrize("width", [1, C])
def test_the_gradient_is_torchs(has_third_product: bool, chunk: int, width: int) -> None:
    model = Model(has_third_product, width)
    expected = model.expected()
    loss = model.loss(chunk)
    loss.backward(retain_graph=True)
    torch.testing.assert_close(model.source.weight.grad, expected)
    assert model.source.weight.grad.is_contiguous()
    loss.backward(torch.tensor(0.5, dtype=torch.float64))  # added to the first
    (0.25 * model.loss(chunk)).backward()
    torch.testing.assert_close(model.source.weight.grad, 1.75 * expected)


def test_others_see_one_gradient() -> None:
    """Such as the hooks of distributed training; and other tensors can have gradients alone."""
    model, calls = Model(), []
    weight = model.source.weight
    weight.register_hook(calls.append)
    model.scale.requires_grad_()
    loss = model.loss()
    torch.autograd.grad(loss, model.scale, retain_graph=True)
    assert not calls
    (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
    loss.backward()
    torch.testing.assert_close(calls, [model.expected()] * 2)
    torch.testing.assert_close([gradient, weight.grad], calls)


def test_two_losses_of_one_pass() -> None:
    """As with auxiliary heads; the parts of both products count."""
    model = Model()
    weight = model.source.weight
    with tied(model, weight) as shared:
        features = model.source(TOKENS).sin()
        outputs = [OutputLayer(features * scale, weight, tied=shared) for scale in (1, 2)]
        losses = [smoothed_nll(output, TARGET, 0.1, PAD)[0] for output in outputs]
    sum(losses).backward()
    features = F.embedding(TOKENS, weight, PAD).sin()
    outputs = [OutputLayer(features * scale, weight) for scale in (1, 2)]
    expected = sum(smoothed_nll(output, TARGET, 0.1, PAD)[0] for output in outputs)
    torch.testing.assert_close([weight.grad], [*torch.autograd.grad(expected, weight)])


def test_parts_are_freed_without_a_collection() -> None:
    model = Model()
    with tied(model, model.source.weight) as shared:
        parts = weakref.ref(shared.parts)
        loss = model.source(TOKENS).sum()
    del shared
    loss.backward()
    del loss
    assert parts() is None
    expected = torch.zeros(V, C, dtype=torch.float64)  # of a table that no product has read
    for token in TOKENS[TOKENS.ne(PAD)]:
        expected[token] += 1
    torch.testing.assert_close(model.source.weight.grad, expected)


def _frozen(model: Model) -> None:
    model.source.weight.requires_grad = False


def _limited(model: Model) -> None:
    model.source.max_norm = model.target.max_norm = 1.0


def _half(model: Model) -> None:
    model.bfloat16()


def _scaled(model: Model) -> None:
    model.source.scale_grad_by_freq = model.target.scale_grad_by_freq = True


@pytest.mark.parametrize("change", [_frozen, _limited, _half, _scaled])
def test_where_it_stays_torchs(change: Any) -> None:
    model = Model()
    change(model)
    with tied(model, model.source.weight) as shared:
        assert shared is None
        assert "forward" not in vars(model.source)


def test_nothing_is_left_in_the_modules() -> None:
    model = Model()
    with pytest.raises(IndexError), tied(model, model.source.weight):
        model.source(torch.tensor([V]))
    assert "forward" not in vars(model.source)
    with torch.no_grad(), tied(model, model.source.weight) as shared:
        assert shared is None


def test_a_decoder_with_another_product_keeps_its_own_gradient() -> None:
    """Its output layer is where `last_product` says, with or without an `output_projection`."""
    model, _ = models.build(TIED)
    projection = nn.Linear(*model.decoder.output_projection.weight.shape[::-1])

    def last_product(self: Any, features: Tensor) -> OutputLayer:
        return OutputLayer(features, projection.weight)

    kind = type(model.decoder)
    methods = {"output_layer": kind.output_layer, "last_product": last_product}
    model.decoder.__class__ = type("Other", (kind,), methods)
    features = torch.ones(1, 2, projection.in_features)
    for _ in range(2):
        with chunked_output.deferred(model):
            assert chunked_output.output_layer(model, features).tied is None
        if hasattr(model.decoder, "output_projection"):
            del model.decoder.output_projection
    assert "_tied" not in vars(model.decoder)


def test_the_table_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch fills a table with zeros for each lookup, and adds up the tables."""
    model, _ = models.build(TIED)
    sample = models.batch()
    table = list(model.decoder.embed_tokens.weight.shape)

    def passes() -> int:
        with chunked_output.deferred(model):
            features = model.train()(**sample["net_input"])[0]
            output = chunked_output.output_layer(model, features)
            loss, _ = smoothed_nll(output, sample["target"], 0.1, PAD)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as record:
            loss.backward()
        names = ("aten::fill_", "aten::add", "aten::add_", "aten::copy_")
        return sum(event.name in names and table in event.input_shapes for event in record.events())

    assert passes() == 1
    monkeypatch.setattr(tied_weight, "tied", lambda *unused: contextlib.nullcontext())
    assert passes() >= 3
