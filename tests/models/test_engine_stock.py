"""What a model computes beyond its weights is refused, not left out; so are NaN weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.quant_noise import quant_noise
from fairseq.sequence_generator import SequenceGenerator
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.generation.on_engine import NativeGenerator, with_engine
from fairseq_ext.utils.errors import CheckpointError, ConfigError
from tests.support import models
from tests.support.bundles import engine_model
from tests.support.engine import LIGHTCONV

STOCK = ["--arch", "transformer", *models.SMALL]


def overridden(path: str, method: str | None = "forward") -> Callable[[nn.Module], None]:
    """Give a module a class of its own, ``Own…``, with its own form of a method."""

    def change(model: nn.Module) -> None:
        module = model.get_submodule(path)
        kind = type(module)

        def own(self: nn.Module, *args: Any, **options: Any) -> Any:
            return getattr(kind, method)(self, *args, **options)

        module.__class__ = type(f"Own{kind.__name__}", (kind,), {method: own} if method else {})

    return change


def patched(model: nn.Module) -> None:
    model.decoder.layers[0].fc1.forward = lambda x: x


def hooked(model: nn.Module) -> None:
    model.encoder.register_forward_hook(lambda module, inputs, result: result)


def hooked_before(model: nn.Module) -> None:
    model.decoder.layers[0].fc1.register_forward_pre_hook(lambda module, inputs: inputs)


CHANGES = {
    "linear": (overridden("decoder.layers.0.fc1"), "no OwnLinear"),
    "projection": (overridden("encoder.layers.0.self_attn.q_proj"), "no OwnLinear"),
    "attention": (overridden("encoder.layers.1.self_attn"), "no OwnMultiheadAttention"),
    "layer": (overridden("encoder.layers.0", "residual_connection"), "no Own.*EncoderLayer"),
    "norm": (overridden("decoder.layers.0.final_layer_norm"), "no OwnLayerNorm"),
    "decoder": (overridden("decoder", "output_layer"), "no OwnTransformerDecoder"),
    "encoder": (overridden("encoder", "forward_embedding"), "no OwnTransformerEncoder"),
    "model": (overridden("", "get_normalized_probs"), "no OwnTransformerModel"),
    "instance": (patched, "no Linear"),
    "hook": (hooked, "no hook such as that on TransformerEncoder"),
    "hook-before": (hooked_before, "no hook such as that on Linear"),
    "weight-norm": (lambda model: weight_norm(model.decoder.layers[0].fc1), "no hook"),
    "parametrization": (
        lambda model: parametrizations.spectral_norm(model.decoder.layers[0].fc1),
        "no parametrization",
    ),
}
HARMLESS = {
    "renamed": overridden("decoder.layers.0.fc1", None),
    "loss": overridden(""),  # only what training calls
    "checkpoints": lambda model: checkpoint_wrapper(model.encoder.layers[0]),
    "quant-noise": lambda model: quant_noise(model.decoder.layers[0].fc1, 0.1, 8),
    # finite, although their sum in fp32 is not
    "large weights": lambda model: model.encoder.layers[0].fc1.weight.data.fill_(3e38),
}


def engine(model: nn.Module, task: Any) -> Any:
    generator = SequenceGenerator([model], task.target_dictionary)
    return with_engine(generator, [model], task.target_dictionary, "fp32")


@pytest.mark.parametrize("name", CHANGES)
def test_code_of_its_own_is_fairseqs(name: str):
    """A model that its classes do not describe is translated by fairseq's generator."""
    change, message = CHANGES[name]
    model, task = models.build(STOCK)
    change(model)
    with pytest.raises(ConfigError, match=f"^the engine has {message}"):
        compile_model(model, task.target_dictionary)
    assert type(engine(model, task)) is SequenceGenerator


@pytest.mark.parametrize("name", ["muse", "gru", "linformer", "bmt-1"])
def test_code_of_its_own_in_other_models(name: str):
    model, task = models.build(models.ARCHITECTURES[name])
    linears = [path for path, module in model.named_modules() if type(module) is nn.Linear]
    if linears:
        overridden(linears[-1])(model)
    else:
        hooked(model)
    with pytest.raises(ConfigError, match="the engine has no"):
        compile_model(model, task.target_dictionary)


EVEN_KERNELS = ["--encoder-kernel-size-list", "[3, 4]"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([*STOCK, "--quant-noise-pq", "0.1"], "layer that `--quant-noise-pq` adds"),
        (
            [*LIGHTCONV, "--weight-softmax", "False"],
            "dynamic convolution without `--weight-softmax`",
        ),
        ([*LIGHTCONV, *EVEN_KERNELS], "even number of taps in the encoder"),
    ],
)
def test_layers_that_the_engine_does_not_have_are_fairseqs(flags: list[str], message: str):
    model, task = models.build(flags)
    with pytest.raises(ConfigError, match=f"^the engine has no .*{message}"):
        compile_model(model, task.target_dictionary)
    assert type(engine(model, task)) is SequenceGenerator


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_nothing_is_the_engines(name: str):
    model, task = models.build(STOCK)
    HARMLESS[name](model)
    assert type(engine(model, task)) is NativeGenerator


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["encoder.layers.0.fc1.weight", "decoder.layer_norm.weight"])
def test_weights_that_are_not_finite(name: str, value: float):
    """One message, which names the weight, wherever a model is laid out."""
    model, task = models.build([*STOCK, "--decoder-normalize-before"])
    with torch.no_grad():
        model.get_parameter(name).flatten()[3] = value
    message = rf"weights of the model \({name}\) are not finite; the training has diverged"
    for use in (
        lambda: engine(model, task),
        lambda: engine_model(model, task, "int8", "transformer"),
    ):
        with pytest.raises(CheckpointError, match=message):
            use()
