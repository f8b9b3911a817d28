"""Choose which of a Transformer's five kinds of matrix products are binarized.

``qkv`` are the projections to queries, keys and values. ``out`` is the output projection of the
attention. ``ffn`` are both layers of the feed-forward network. Two products have no weights: ``qk``
multiplies queries by keys, ``score-v`` attention weights by values. Each row of the paper's Table 1
is a :class:`Switches`.
"""

from dataclasses import dataclass, replace
from typing import Any

from fairseq_ext.binary.binarize import TERNARY
from fairseq_ext.utils.errors import ConfigError, wrong_value

LAYERS = ("qkv", "out", "ffn")
PRODUCTS = (*LAYERS, "qk", "score-v")
OPTIONS = {"ffn": "bmt_ffn", "output": "bmt_attention_output", "binarizer": "binarizer"}
"""The options of ``bmt`` that each override one field of a preset's :class:`Switches`."""


@dataclass(frozen=True)
class Switches:
    """A choice of the products to binarize, with the norms and shortcuts that they need."""

    weights: frozenset[str] = frozenset()  # products of LAYERS with binary weights
    activations: frozenset[str] = frozenset()  # products of PRODUCTS with binary inputs
    heads_norm: bool = True  # apply layer norm to each head of q, k and v
    ffn: str = "layer"  # after each product of the feed-forward network: a norm, 1 / s or nothing
    output: str = "shortcut"  # output of the attention: LN(A W) + A, LN(A W), A W / s or A W
    binarizer: str = "bmt"  # `bmt` or `xnor`
    ternary: bool = False  # make weights ternary instead of binary

    @property
    def anything(self) -> bool:
        """Whether any product has binary or ternary weights, or binary inputs."""
        return bool(self.weights or self.activations)


def _row(weights: str, activations: str = "", **options: Any) -> Switches:
    return Switches(frozenset(weights.split()), frozenset(activations.split()), **options)


PLAIN = {"heads_norm": False, "output": "plain"}
# Table 1, row by row; bmt-s is the model of the ablation in Figure 5a (FFN only, fixed factor).
PRESETS = {
    "float": _row(""),
    "bmt-1": _row("qkv out ffn"),
    "bmt-2": _row("ffn", "ffn"),
    "bmt-3": _row("qkv out ffn", "ffn"),
    "bmt-4": _row("qkv out ffn", "ffn qkv"),
    "bmt-5": _row("qkv out ffn", "ffn out"),
    "bmt-6": _row("qkv out ffn", "ffn qkv out"),
    "bmt-7": _row("qkv out ffn", "qk"),
    "bmt-8": _row("qkv out ffn", "qk score-v"),
    "xnor-base": _row("ffn", "ffn", ffn="none", binarizer="xnor", **PLAIN),
    "bmt-s": _row("ffn", "ffn", ffn="scale", **PLAIN),
}


def products(option: str, text: str, allowed: tuple[str, ...]) -> frozenset[str]:
    """Parse a comma-separated list of products; ``none`` means no products.

    Raise ConfigError, which names ``option``, if a product is not among ``allowed``.
    """
    if text == "none":
        return frozenset()
    names = frozenset(text.split(","))
    if names - set(allowed):
        raise wrong_value(option, f"`none` or a list of {','.join(allowed)}", text)
    return names


def selected(cfg: Any) -> Switches:
    """Return the products to binarize, and how, from the options of a model.

    The model ``bmt`` starts from a row of Table 1 (``--bmt-preset``), other models from no
    products. Further options change this choice:

    - ``--binary-weights`` and ``--binary-activations``: the products; ``none`` for no products, an
      empty text for those of the row.
    - ``--bmt-ffn``, ``--bmt-attention-output`` and ``--binarizer``: norms, shortcut and binarizer;
      ``preset`` for those of the row.

    Raises:
        ConfigError: an option names an unknown product; or ``--binarizer`` has no effect, because
            weights are ternary and no activations are binary.
    """
    switches = PRESETS[str(cfg.bmt_preset)] if hasattr(cfg, "bmt_preset") else Switches()
    if cfg.binary_weights:
        named = products("--binary-weights", cfg.binary_weights, (*LAYERS, TERNARY))
        if named == {TERNARY}:
            named |= {*LAYERS}
        switches = replace(switches, weights=named - {TERNARY}, ternary=TERNARY in named)
    if cfg.binary_activations:
        named = products("--binary-activations", cfg.binary_activations, PRODUCTS)
        switches = replace(switches, activations=named)
    values = {name: str(getattr(cfg, option, "preset")) for name, option in OPTIONS.items()}
    changes: dict[str, Any] = {name: value for name, value in values.items() if value != "preset"}
    switches = replace(switches, **changes)
    if switches.ternary and not switches.activations and "binarizer" in changes:
        raise ConfigError(
            "`--binarizer` must not be given with ternary weights and float activations: it would "
            "have no effect."
        )
    return switches
