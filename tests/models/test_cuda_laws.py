"""Laws of every architecture on a GPU, against the CPU's fp32.

``FAIRSEQ_EXT_TEST_DEVICE=cpu`` runs them without a GPU.
"""

import copy
import logging
import os

import pytest
import torch
from fairseq.models import BaseFairseqModel
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import apply_to_sample
from torch import Tensor

from fairseq_ext.engine import TORCH
from fairseq_ext.generation import on_engine as engine
from tests.models.test_laws import SOURCE_ROWS, TARGET_ROWS, compare_steps_with_full
from tests.support import models

DEVICE = os.environ.get("FAIRSEQ_EXT_TEST_DEVICE", "cuda")
MODELS = {"transformer": ["--arch", "transformer", *models.SMALL], **models.ARCHITECTURES}
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.15}
"""Of the standard deviation of the logits."""

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.parametrize("name", MODELS),
]
in_all_types = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN rounds fp32 products to TF32 by default."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def is_unsteady(name: str) -> bool:
    """Whether rounding changes signs of activations, and so the function."""
    return name in models.UNDER_LAW and models.UNDER_LAW[name].unsteady


def sharpened(name: str) -> tuple[BaseFairseqModel, object]:
    """A model with weights that are larger than at first, so that attention is not uniform.

    Without dropout, since cuDNN's GRU computes gradients in training mode only.
    """
    dropouts = ["--dropout", "0", *(["--weight-dropout", "0"] if "muse" in name else [])]
    model, task = models.build([*MODELS[name], *dropouts], seed=6)
    models.sharpen(model, 1.5)
    return model, task


def logits(model: BaseFairseqModel, device: str) -> Tensor:
    words = models.net_input(SOURCE_ROWS, TARGET_ROWS)
    return model(**{name: part.to(device) for name, part in words.items()})[0]


def gradients(model: BaseFairseqModel, device: str) -> list[Tensor]:
    """Gradients of the mean negative log-likelihood."""
    target = TARGET_ROWS.to(device)
    likelihood = logits(model, device).float().log_softmax(-1).gather(2, target.unsqueeze(2))
    (-likelihood.squeeze(2)[target.ne(1)].mean()).backward()
    return [parameter.grad.float().cpu() for parameter in model.parameters()]


@in_all_types
@torch.no_grad()
def test_forward_equals_the_cpus(name, dtype, record_property):
    model, _ = sharpened(name)
    exact = logits(model, "cpu")
    computed = logits(copy.deepcopy(model).to(DEVICE, dtype), DEVICE)
    assert computed.dtype == dtype
    assert computed.isfinite().all()
    difference = ((computed.float().cpu() - exact).abs().max() / exact.std()).item()
    record_property("difference", difference)
    if dtype is torch.float32 or not is_unsteady(name):
        assert difference < TOLERANCE[dtype]


@in_all_types
def test_backward_equals_the_cpus(name, dtype, record_property):
    model, _ = sharpened(name)
    device_model = copy.deepcopy(model).to(DEVICE, dtype).train()
    computed, exact = gradients(device_model, DEVICE), gradients(model.train(), "cpu")
    assert all(gradient.isfinite().all() for gradient in computed)
    size = torch.cat([gradient.flatten() for gradient in exact]).norm()
    parts = [gradient - other for gradient, other in zip(computed, exact, strict=True)]
    difference = (torch.cat([part.flatten() for part in parts]).norm() / size).item()
    record_property("difference", difference)
    if dtype is torch.float32:
        assert difference < 1e-3
    elif not is_unsteady(name):
        assert difference < 2 * TOLERANCE[dtype]


def test_autocast_is_finite(name: str) -> None:
    model, _ = sharpened(name)
    model = model.to(DEVICE).train()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        output = logits(model, DEVICE)
    assert output.isfinite().all()
    output.float().square().mean().backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


@torch.no_grad()
def test_incremental_equals_full(name: str) -> None:
    model, _ = sharpened(name)
    tolerance = 1e-4 * logits(model, "cpu").std().item()
    compare_steps_with_full(model.to(DEVICE), tolerance, 1e-4, DEVICE)


def search(model: BaseFairseqModel, task: object, device: str, *, on_engine: bool = False) -> list:
    """Hypotheses of a batch; three times on the engine, which captures graphs at the second."""
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=4, max_len_b=9)
    if on_engine:
        generator = engine.with_engine(generator, [model], task.target_dictionary, TORCH)
        assert isinstance(generator, engine.NativeGenerator)
    sample = models.sample_of(models.random_sentences([9, 2, 6, 1, 4], seed=7))
    sample = apply_to_sample(lambda tensor: tensor.to(device), sample)
    for _ in range(3 if on_engine else 1):
        hypotheses = generator.generate([model], sample)
    return hypotheses


def assert_same_best(computed: list, exact: list, margin: float = 1e-4) -> None:
    """The best hypotheses are equal, except where the second was as good."""
    for ours, theirs in zip(computed, exact, strict=True):
        scores = [float(hypothesis["score"]) for hypothesis in theirs]
        assert float(ours[0]["score"]) == pytest.approx(scores[0], abs=1e-3)
        if len(scores) < 2 or scores[0] - scores[1] > margin:
            assert ours[0]["tokens"].tolist() == theirs[0]["tokens"].tolist()


@torch.no_grad()
def test_beam_search_equals_the_cpus(name: str) -> None:
    model, task = sharpened(name)
    exact = search(model, task, "cpu")
    assert_same_best(search(copy.deepcopy(model).to(DEVICE), task, DEVICE), exact)


@torch.no_grad()
def test_engine_in_graphs_equals_the_cpus_search(name, caplog):
    caplog.set_level(logging.WARNING)
    model, task = sharpened(name)
    exact = search(model, task, "cpu")
    computed = search(copy.deepcopy(model).to(DEVICE), task, DEVICE, on_engine=True)
    assert "without CUDA graphs" not in caplog.text
    assert_same_best(computed, exact)
