"""Replace the float layers of an architecture by binary ones.

The model is built with float layers first. Then the layers that compute the selected matrix
products (see :mod:`fairseq_ext.binary.switches`) are replaced by binary layers with the same
parameters. The name of a layer says which product it computes.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from fairseq.models import BaseFairseqModel
from fairseq.modules import MultiheadAttention
from torch import nn

from fairseq_ext.base import configuration, models
from fairseq_ext.binary import stages, switches
from fairseq_ext.binary.attention import BinaryAttention
from fairseq_ext.binary.binarize import TERNARY, Binarizer
from fairseq_ext.binary.linear import GRANULARITIES, BinaryLinear
from fairseq_ext.utils.errors import ConfigError, wrong_value

# The product that a layer computes, by the layer's name in all architectures. Other layers stay
# float.
LAYER_NAMES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("in_proj", "cross_query", "cross_key_value"), "qkv"),
    **dict.fromkeys(("out_proj", "cross_out"), "out"),
    **dict.fromkeys(("fc1", "fc2"), "ffn"),
}


def layer_options(cfg: Any, selection: switches.Switches, product: str) -> dict[str, Any]:
    """Return the arguments of :class:`BinaryLinear` for layers that compute ``product``.

    ``cfg`` has the options of binarization, ``selection`` the products to binarize. ``product`` is
    a matrix product of the model, such as ``qkv``.

    Raises:
        ConfigError: a bound is neither a number above 0 nor a word such as ``channel``; ternary
            weights have a number as bound; or ``--binary-gradient`` is set with ternary weights and
            float inputs, where it has no effect.
    """
    of_weights, of_inputs = cfg.binary_weight_bound, cfg.binary_activation_bound
    kind, mask = selection.binarizer, str(cfg.binary_gradient)
    fixed = None if of_weights in GRANULARITIES else _bound("--binary-weight-bound", of_weights)
    token = None if of_inputs == "token" else _bound("--binary-activation-bound", of_inputs)
    weight_binarizer = Binarizer(kind, mask, fixed)
    if selection.ternary:
        if fixed is not None:
            wish = "`channel` or `tensor` with ternary weights, whose level is their mean magnitude"
            raise wrong_value("--binary-weight-bound", wish, of_weights)
        if mask != "code" and not selection.activations:
            raise ConfigError(
                f"`--binary-gradient {mask}` must not be given with ternary weights and "
                "float activations: it would have no effect."
            )
        weight_binarizer = Binarizer(TERNARY)
    return {
        "weights": product in selection.weights,
        "inputs": product in selection.activations,
        "granularity": "tensor" if of_weights == "tensor" else "channel",
        "weight_binarizer": weight_binarizer,
        "input_binarizer": Binarizer(kind, mask, token),
    }


def _bound(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        names = "`channel` or `tensor`" if "weight" in option else "`token`"
        raise wrong_value(option, f"{names} or a number above 0", text)
    return value


def attention_options(cfg: Any, selection: switches.Switches) -> dict[str, Any]:
    """Return the arguments of :class:`BinaryAttention` that say which products it binarizes."""
    score_v = str(cfg.binary_score_v) if "score-v" in selection.activations else None
    return {"qk": "qk" in selection.activations, "score_v": score_v}


def add_stage(model: nn.Module, cfg: Any, selection: switches.Switches) -> None:
    """Add the module ``binary_stage`` to a model; it puts all binary layers into the same stage.

    Raise ConfigError if ``--stage-updates`` is wrong, or has fewer stages than ``selection`` needs.
    """
    layers = []
    for module in model.modules():
        layer = isinstance(module, BinaryLinear) and (module.weights or module.inputs)
        products = isinstance(module, BinaryAttention) and any(module.options.values())
        if layer or products:
            layers.append(module)
    fewest = 3 if selection.activations else 2 if selection.weights else 1
    updates = stages.parse_stage_updates(cfg.stage_updates, fewest)
    model.binary_stage = stages.Stage(layers, updates)


def binarize_model(model: BaseFairseqModel, cfg: configuration.BinaryOptions) -> None:
    """Replace layers of a model by binary ones, as the options of binarization say.

    A model that already has a ``binary_stage``, or for which no products are selected, stays as it
    is. Any other model gets a ``binary_stage`` (:func:`add_stage`). Raise ConfigError if the
    options name a product that the model does not compute or cannot binarize, or if the model is
    fused (``--muse-fused``).
    """
    if hasattr(model, "binary_stage"):
        return
    selection = switches.selected(cfg)
    if not selection.anything:
        return
    if getattr(cfg, "muse_fused", False):
        raise ConfigError(
            "`--binary-weights` and `--binary-activations` must not be given with `--muse-fused`: "
            "a fused matrix holds several products."
        )
    if selection.activations & {"qk", "score-v"}:
        _require_own_products(model)
    selected, exchanged = selection.weights | selection.activations, set()
    for path, module in list(model.named_modules(remove_duplicate=False)):
        product = LAYER_NAMES.get(path.rpartition(".")[2])
        if isinstance(module, nn.Linear) and product in selected:
            options = layer_options(cfg, selection, product)
            model.set_submodule(path, BinaryLinear.of(module, **options))
            exchanged.add(product)
        if "qkv" in selection.activations and hasattr(module, "compress_first"):
            module.compress_first = False  # mixing positions first would binarize mixtures
    if missing := selected & set(switches.LAYERS) - exchanged:
        raise ConfigError(
            "`--binary-weights` and `--binary-activations` must name products of the architecture, "
            f"but {type(model).__name__} has no layer of {','.join(sorted(missing))}. Both options "
            f"change the models {', '.join(models.models_with('binary_weights'))}."
        )
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) is MultiheadAttention:  # has a fast path, which reads float weights
            options = attention_options(cfg, selection)
            model.set_submodule(path, BinaryAttention.of(module, **options))
        elif isinstance(module, MultiheadAttention) and exchanged & {"qkv", "out"}:
            raise ConfigError(
                "`--binary-weights` and `--binary-activations` must not name qkv or out for this "
                f"architecture: {type(module).__name__}, a subclass of fairseq's attention, may "
                "read the float weights."
            )
    add_stage(model, cfg, selection)


def _require_own_products(model: BaseFairseqModel) -> None:
    layers = [*model.encoder.layers, *model.decoder.layers]
    plain = [module for module in model.modules() if type(module) is MultiheadAttention]
    if len(plain) < len(layers) + len(model.decoder.layers):
        raise ConfigError(
            "`--binary-activations` must not name qk or score-v for this architecture: its "
            "attention does not compute these products."
        )


def without_effect(cfg: Namespace) -> Iterator[tuple[str, str]]:
    """Yield each option of binarization that has no effect, and what would give it an effect."""
    selection = switches.selected(cfg)
    weights, inputs = selection.weights, selection.activations & {*switches.LAYERS}
    bounded = selection.binarizer == "bmt"  # XNOR-Net's numbers have no bound
    after = {"ffn": selection.ffn, "out": selection.output}
    scaled = [name for name in weights & inputs if after.get(name) == "scale"]
    staged = getattr(cfg, "lr_scheduler", None) == "staged_cosine"  # reads `--stage-updates`, too
    binarized, of_bmt = "binary weights or activations", "`--binarizer bmt`"
    for option, has_effect, needs in (
        ("binarizer", selection.anything, binarized),
        ("stage_updates", selection.anything or staged, binarized),
        ("binary_gradient", selection.anything, binarized),
        ("binary_gradient", bounded, of_bmt),
        ("binary_score_v", "score-v" in selection.activations, "binary `score-v`"),
        ("binary_weight_bound", weights, "binary weights"),
        ("binary_weight_bound", bounded or cfg.binary_weight_bound in GRANULARITIES, of_bmt),
        ("binary_activation_bound", inputs, "binary inputs of qkv, out or ffn"),
        ("binary_activation_bound", bounded, of_bmt),
        ("bmt_scale", scaled, "a scaled product of binary weights and inputs"),
        ("dropout_before_binarization", "ffn" in inputs, "binary inputs of ffn"),
        ("dropout_before_binarization", cfg.activation_dropout, "`--activation-dropout`"),
    ):
        if not has_effect:
            yield option, needs


models.TranslationTransformer.binarization = sys.modules[__name__]
