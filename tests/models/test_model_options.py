"""Each option of our models, loss and schedule has an effect, is refused, or is named.

Each variant in the tables of architectures is built anew with each option of its model. A new
option fails here until it has a value. The options of our task are in
`tests/unit/test_translation_ext.py`, those of fairseq's commands in
`tests/commands/test_option_effects.py`.
"""

import argparse
import functools
from typing import Any

import pytest
import torch
from fairseq import models
from fairseq.optim import FairseqOptimizer
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_ext.base.configuration import BinaryOptions, TransformerModelConfig
from fairseq_ext.binary import distillation
from fairseq_ext.binary.distillation import DistillationConfig
from fairseq_ext.binary.stages import StagedCosine, StagedCosineConfig
from fairseq_ext.plugin.checks import arguments
from fairseq_ext.utils.errors import ConfigError
from tests.models.test_linformer_encoder import HEAD, TASK
from tests.models.test_linformer_encoder import MODELS as CLASSIFIERS
from tests.support.models import ARCHITECTURES, batch, build, configuration, dictionary
from tests.support.trainings import same_state

VARIANTS = {**ARCHITECTURES, **{f"classifier-{name}": CLASSIFIERS[name] for name in CLASSIFIERS}}
OF_STOCK = {*TransformerModelConfig.__dataclass_fields__} - {*BinaryOptions.__dataclass_fields__}
"""fairseq's own options, which are tested with the first variant of each model alone."""
SO_ANYWAY = {
    "encoder_normalize_before": ("bmt",),
    "decoder_normalize_before": ("bmt",),
    "share_decoder_input_output_embed": ("--share-all-embeddings",),
}
"""Flags that ask for what a model, or a model with another flag, has anyway."""
IN_GENERATION = ("muse_fused",)
"""Options with an effect in generation only, which have tests of their own."""
SIDES, DROPOUTS = ("encoder", "decoder"), ("attention", "activation", "weight", "input", "pooler")
SIZES = {"embed_dim": "64", "ffn_embed_dim": "40", "layers": "3"}
SIZES |= {"attention_heads": "4", "hidden_size": "24"}
VALUES: dict[str, tuple[str, ...]] = {
    **{f"{layer}_dropout": ("0.3",) for layer in DROPOUTS},
    **{f"{side}_{size}": (value,) for side in SIDES for size, value in SIZES.items()},
    **dict.fromkeys(("max_source_positions", "max_target_positions", "max_positions"), ("9",)),
    "dropout": ("0.3",),
    "attention_dim": ("24",),
    "binary_weights": ("none", "qkv", "ternary"),
    "binary_activations": ("none", "ffn"),
    "binary_weight_bound": ("tensor", "0.5"),
    "binary_activation_bound": ("0.5",),
    "stage_updates": ("5,5,5",),
    "bmt_scale": ("16",),
    "linformer_k": ("6",),
    "linformer_max_len": ("20",),
    "muse_kernels": ("5", "none"),
}
"""Other values of the options that are neither flags nor have choices."""


def model_of(variant: str) -> str:
    flags = VARIANTS[variant]
    return models.ARCH_MODEL_NAME_REGISTRY[flags[flags.index("--arch") + 1]]


FIRST = {model_of(variant): variant for variant in reversed(VARIANTS)}
"""The first variant of each model."""


@functools.cache
def task_of(model: str) -> FairseqTask:
    words = dictionary()
    if model.endswith("_encoder"):
        cfg = configuration([*CLASSIFIERS["linformer"], *TASK, "--num-classes", "3"])
        return SentencePredictionTask(cfg.task, words, dictionary(8))
    return TranslationTask(configuration(ARCHITECTURES["gru"]).task, words, words)


@functools.cache
def parser_of(model: str) -> argparse.ArgumentParser:
    """The options of a model alone; all of fairseq-train's would take half a second."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    parser.add_argument("--arch")
    models.MODEL_REGISTRY[model].add_args(parser)
    return parser


def values_of(action: argparse.Action) -> list[list[str]]:
    """The words that give an option each other value that matters."""
    option = action.option_strings[-1]
    if action.nargs == 0:
        return [[option]]
    return [[option, value] for value in action.choices or VALUES[action.dest]]


def parsed(model: str, words: list[str]) -> argparse.Namespace:
    args = parser_of(model).parse_args(words)
    models.ARCH_CONFIG_REGISTRY[args.arch](args)
    args.task = "translation"
    return args


def traits(model: str, words: list[str]) -> list[Any]:
    """What a model has and computes: sizes, initial weights, outputs, gradients, memory."""
    torch.manual_seed(0)
    built = models.MODEL_REGISTRY[model].build_model(parsed(model, words), task_of(model))
    inputs = batch()["net_input"]
    if model.endswith("_encoder"):
        built.register_classification_head(HEAD, 3)
        inputs = {**inputs, "classification_head_name": HEAD}
        del inputs["prev_output_tokens"]
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = built.train()(**inputs)[0]
    output.pow(2).sum().backward()
    gradients = {name: weight.grad for name, weight in built.named_parameters()}
    state = built.state_dict()
    state.pop("binary_stage.current", None)  # a number; what it means is in the outputs
    return [built.max_positions(), sum(kept), output.detach(), state, gradients]


QUICK = {*FIRST.values(), "gru-dot", "linformer-mean-pool", "muse-simple", "muse-ordinary"}
QUICK |= {"bmt-float", "bmt-8", "xnor-base", "ternary-transformer"}
"""The variants with which some option has no effect, and the first ones."""


@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in VARIANTS],
)
def test_every_option_has_an_effect_or_is_named(variant, monkeypatch, capsys) -> None:
    model, flags = model_of(variant), VARIANTS[variant]
    plain = traits(model, flags)
    assert same_state(plain, traits(model, flags))
    for action in parser_of(model)._actions:
        is_set = action.nargs == 0 and action.option_strings[-1] in flags
        is_so = is_set or {model, *flags} & {*SO_ANYWAY.get(action.dest, ())}
        is_tested = action.dest in OF_STOCK and variant != FIRST[model]
        if is_so or is_tested or action.dest in ("help", "arch", *IN_GENERATION):
            continue
        outcomes = []
        for words in values_of(action):
            monkeypatch.setattr("sys.argv", ["fairseq-train", *flags, *words])
            capsys.readouterr()
            arguments.name_ignored(parser_of(model), parsed(model, [*flags, *words]))
            is_named = f"`{words[0]}` has no effect without" in capsys.readouterr().err
            try:
                has_effect = not same_state(plain, traits(model, [*flags, *words]))
            except ConfigError:
                has_effect = True
            assert not (is_named and has_effect), words
            outcomes.append(is_named or has_effect)
            if has_effect:
                break
        assert any(outcomes), action.dest


def test_every_option_of_the_loss_has_an_effect(monkeypatch) -> None:
    values = {"teacher": "other", "temperature": 2.0, "teacher_weight": 0.5}
    values |= {"report_accuracy": True, "sentence_avg": True}
    assert values.keys() == DistillationConfig.__dataclass_fields__.keys() - {"_name"}
    teachers = {
        name: build(ARCHITECTURES["gru"], seed=seed)[0] for seed, name in enumerate(("", "other"))
    }
    monkeypatch.setattr(distillation, "load_teacher", lambda path, task: teachers[path])
    student, task = build(ARCHITECTURES["gru"], seed=2)

    def loss(**options: Any) -> list[Any]:
        settings = {"task": task, "sentence_avg": False, "teacher": "", **options}
        criterion = distillation.DistillationCriterion(**settings).train()
        return [*criterion(student, batch())]

    for name, value in values.items():
        assert not same_state(loss(), loss(**{name: value})), name
    assert same_state(loss(), loss())


def test_every_option_of_the_schedule_has_an_effect(monkeypatch) -> None:
    values = {"stage_updates": "5,5,10", "warmup_updates": 2, "lr": [0.2], "max_update": 30}
    assert values.keys() == StagedCosineConfig.__dataclass_fields__.keys() - {"_name"}

    def rates(**options: Any) -> list[float]:
        cfg = StagedCosineConfig(**{"lr": [0.1], "max_update": 20, **options})
        optimizer = FairseqOptimizer(None)
        monkeypatch.setattr(optimizer, "set_lr", lambda rate: None)
        schedule = StagedCosine(cfg, optimizer)
        return [schedule.step_update(update) for update in range(20)]

    for name, value in values.items():
        assert rates() != rates(**{name: value}), name


def test_everything_of_ours_is_tested() -> None:
    registries = [kind["registry"] for kind in REGISTRIES.values()]
    ours = {
        name
        for registry in (models.MODEL_REGISTRY, TASK_REGISTRY, *registries)
        for name, cls in registry.items()
        if cls.__module__.startswith("fairseq_ext.")
    }
    assert ours == {*FIRST, "translation_ext", "distillation", "staged_cosine"}
