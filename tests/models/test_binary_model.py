"""BMT models: presets, counts, stages, schedule, distillation, binary layers in other models."""

import math
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from fairseq.models import BaseFairseqModel
from fairseq.modules import MultiheadAttention, layer_norm
from fairseq.optim import FairseqOptimizer
from torch import Tensor, nn

from fairseq_ext.binary import compose, distillation, stages, switches
from fairseq_ext.binary.attention import BinaryAttention
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.binary.stages import StagedCosine, StagedCosineConfig, learning_rate
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.plugin.features import speed
from fairseq_ext.utils.errors import ConfigError
from tests.models import test_laws
from tests.support import models
from tests.support.models import BMT, build

STOCK = ["--arch", "binary_transformer", *models.SMALL]


def binary_layers(model: nn.Module) -> dict[str, BinaryLinear]:
    return {name: m for name, m in model.named_modules() if isinstance(m, BinaryLinear)}


# Table 1: the columns A_QKV W_QKV A_OUT W_OUT QK SCORE-V A_FFN W_FFN; and one that is not in it.
ROWS = {
    "float": "........",
    "bmt-1": ".x.x...x",
    "bmt-2": "......xx",
    "bmt-3": ".x.x..xx",
    "bmt-4": "xx.x..xx",
    "bmt-5": ".xxx..xx",
    "bmt-6": "xxxx..xx",
    "bmt-7": ".x.xx..x",
    "bmt-8": ".x.xxx.x",
    "xnor-base": "......xx",
    "bmt-s": "......xx",
}


def product_of(layer: str) -> str:
    return "ffn" if "fc" in layer else "out" if "out_proj" in layer else "qkv"


class TestPresets:
    @pytest.mark.parametrize("name", ROWS)
    def test_models_are_what_the_papers_rows_say(self, name: str) -> None:
        model, _ = build([*BMT, "--bmt-preset", name])
        a_qkv, w_qkv, a_out, w_out, qk, score_v, a_ffn, w_ffn = (x == "x" for x in ROWS[name])
        binary = {"qkv": (w_qkv, a_qkv), "out": (w_out, a_out), "ffn": (w_ffn, a_ffn)}
        layers = binary_layers(model)
        counts = {"qkv": 2 * 3 + 2 * 6, "out": 2 + 4, "ffn": 4 + 4}
        assert Counter(map(product_of, layers)) == counts
        for layer_name, layer in layers.items():
            assert (layer.binary_weights, layer.binary_inputs) == binary[product_of(layer_name)]
        for module in model.modules():
            if isinstance(module, BinaryAttention):
                assert (module.binary_qk, bool(module.binary_score_v)) == (qk, score_v)
                is_shortcut = name not in ("xnor-base", "bmt-s")
                assert module.shortcut == bool(module.head_norms) == is_shortcut

    def test_options_change_single_parts_of_a_row(self) -> None:
        flags = ["--bmt-preset", "float", "--binary-weights", "out", "--binary-activations", "out"]
        model, _ = build([*BMT, *flags, "--bmt-attention-output", "scale", "--bmt-scale", "8"])
        layers = binary_layers(model)
        assert {name for name, m in layers.items() if m.binary_inputs} == {
            name for name in layers if name.endswith("out_proj")
        }
        assert layers["encoder.layers.0.self_attn.out_proj"].scale == 8
        assert layers["encoder.layers.0.fc1"].scale == 1
        assert model.encoder.layers[0].self_attn.output_norm is None
        model, _ = build([*BMT, "--bmt-preset", "bmt-6", "--binary-activations", "none"])
        assert not any(layer.binary_inputs for layer in binary_layers(model).values())

    def test_bounds_and_gradients_by_option(self) -> None:
        model, _ = build([*BMT, "--binary-weight-bound", "0.5", "--binary-gradient", "paper"])
        layer = model.encoder.layers[0].fc1
        assert layer.binarized_weight().abs().eq(0.25).all()
        assert layer.weight_binarizer.mask == "paper"
        model, _ = build([*BMT, "--binary-weight-bound", "tensor"])
        assert model.encoder.layers[0].fc1.granularity == "tensor"
        flags = ["--bmt-preset", "bmt-6", "--binary-activation-bound", "2"]
        model, _ = build([*BMT, *flags])
        assert model.encoder.layers[0].fc1.input_binarizer.bound == 2

    @pytest.mark.parametrize(
        ("weights", "ternary"),
        [("ternary", {"qkv", "out", "ffn"}), ("ffn,ternary", {"ffn"}), ("qkv", set())],
    )
    def test_ternary_parts(self, weights: str, ternary: set[str]) -> None:
        model, _ = build([*BMT, "--binary-weights", weights])
        for name, layer in binary_layers(model).items():
            product = product_of(name)
            count = len(layer.binarized_weight()[0].unique())
            assert min(count, 4) == (3 if product in ternary else 2 if product == weights else 4)

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--binary-weights", "qkv,fnn"], "`--binary-weights` must be"),
            (["--binary-weights", "qk"], "`--binary-weights` must be"),
            (["--binary-weights", "ternary,none"], "`none` or a list of qkv,out,ffn,ternary"),
            (
                ["--binary-weights", "ternary", "--binary-weight-bound", "0.5"],
                "`channel` or `tensor` with ternary weights",
            ),
            (["--binary-weights", "ternary", "--binarizer", "xnor"], "it would have no effect"),
            (
                ["--binary-weights", "ternary", "--binary-gradient", "paper"],
                "`--binary-gradient paper` must not be given with ternary weights",
            ),
            (["--binary-activations", "scores"], "`--binary-activations` must be"),
            (["--binary-weight-bound", "row"], "`--binary-weight-bound` must be"),
            (["--binary-activation-bound", "-1"], "`--binary-activation-bound` must be"),
            (["--bmt-scale", "0"], "`--bmt-scale` must be"),
            (["--stage-updates", "10"], "must have 2 stages"),
            (["--bmt-preset", "bmt-2", "--stage-updates", "10,10"], "must have 3 stages"),
            (["--stage-updates", "10,x"], "`--stage-updates` must be"),
            (["--stage-updates", "1,2,3,4"], "`--stage-updates` must be"),
            (["--stage-updates", "0,0"], "`--stage-updates` must be"),
            ([*models.MUSE, "--binary-activations", "qk"], "must not name qk or score-v"),
            ([*models.LINFORMER, "--binary-activations", "qk"], "must not name qk or score-v"),
            (
                [*models.MUSE, "--muse-fused", "--binary-weights", "ffn"],
                "must not be given with `--muse-fused`",
            ),
        ],
    )
    def test_refuses(self, flags: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            build([*BMT, *flags])


def test_counts_of_the_papers_model() -> None:
    """96 tensors of 176,160,768 weights: 6 (4 d² + 2 d f) + 6 (8 d² + 2 d f)."""
    with torch.device("meta"):
        model, _ = build(["--arch", "bmt_wmt_de_en"], size=64)
    layers = binary_layers(model)
    assert all(layer.binary_weights for layer in layers.values())
    assert len(layers) == 96
    d, f = 1024, 4096
    weights = 6 * (4 * d * d + 2 * d * f) + 6 * (8 * d * d + 2 * d * f)
    assert sum(layer.weight.numel() for layer in layers.values()) == weights == 176_160_768
    assert not [name for name in layers if "embed" in name or "output_projection" in name]
    table = model.encoder.embed_tokens.weight
    assert dict(model.named_parameters()).get("decoder.embed_tokens.weight", table) is table
    assert model.decoder.output_projection.weight is table
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}
    norm = model.decoder.layers[0].encoder_attn.head_norms["k"]
    assert norm.weight.shape == (64,)


PAPER_STAGES = [50_000, 88_339, 88_339]


class TestStages:
    def test_stage_of_an_update(self) -> None:
        updates_stages = [
            stages.stage_at(u, PAPER_STAGES) for u in (0, 49_999, 50_000, 138_338, 138_339, 10**6)
        ]
        assert updates_stages == [0, 0, 1, 1, 2, 2]
        assert stages.stage_at(0, []) == 2
        assert [stages.stage_at(u, [3, 0, 4]) for u in (2, 3)] == [0, 2]
        assert [stages.stage_at(u, [3, 4]) for u in (2, 3, 99)] == [0, 1, 1]

    @pytest.mark.parametrize(
        ("flags", "names"),
        [
            (["--bmt-preset", "bmt-6"], ["binary weights", "binary weights and activations"]),
            (["--bmt-preset", "bmt-1"], ["binary weights", "binary weights"]),
            (["--binary-weights", "ternary"], ["ternary weights", "ternary weights"]),
            (
                ["--binary-weights", "ternary", "--binary-activations", "ffn"],
                ["ternary weights", "ternary weights and binary activations"],
            ),
            (
                ["--binary-weights", "none", "--binary-activations", "ffn"],
                ["float", "binary activations"],
            ),
        ],
    )
    def test_a_stage_is_named_by_what_it_makes_binary(self, flags, names, caplog) -> None:
        model, _ = build([*BMT, *flags, "--stage-updates", "5,5,5"])
        with caplog.at_level("INFO"):
            for update in (5, 10):
                model.set_num_updates(update)
        named = zip((5, 10), names, strict=True)
        assert caplog.messages == [f"update {at}: {name} from here on" for at, name in named]

    def test_stage_survives_half_precision(self) -> None:
        model, _ = build(BMT)
        assert model.half().binary_stage.current.dtype == torch.long


def logits(model: nn.Module) -> Tensor:
    return model.eval()(**models.batch()["net_input"])[0]


def same_logits(left: nn.Module, other: nn.Module, atol: float = 0.0) -> bool:
    return torch.allclose(logits(left), logits(other), rtol=0, atol=atol)


class TestSchedule:
    @pytest.mark.parametrize(
        ("update", "expected"),
        [
            *((0, 0.0), (2000, 0.5e-3), (4000, 1e-3), (4000 + 22_999.5, 0.5e-3), (49_999, 0.0)),
            *((50_000, 0.0), (54_000, 1e-3), (138_338, 0.0), (138_339, 0.0), (142_339, 1e-3)),
            *((226_677, 0.0), (226_678, 0.0), (300_000, 0.0)),
            *((t, 5e-4 + 5e-4 * math.cos(math.pi * (t - 4000) / 45_999)) for t in (4001, 49_998)),
        ],
    )
    def test_values(self, update: float, expected: float) -> None:
        rate = learning_rate(update, PAPER_STAGES, 4000, [1e-3])
        assert rate == pytest.approx(expected, abs=1e-12)

    def test_a_peak_for_each_stage_and_empty_stages(self) -> None:
        assert learning_rate(110, [100, 0, 100], 10, [1.0, 2.0, 3.0]) == pytest.approx(3.0)

    def make(self, **options: object) -> StagedCosine:
        defaults = {"stage_updates": "100,100", "warmup_updates": 10, "lr": [1.0], "max_update": 0}
        cfg = StagedCosineConfig(**(defaults | options))
        return StagedCosine(cfg, Mock(spec=FairseqOptimizer))

    def test_scheduler_is_stateless(self) -> None:
        scheduler = self.make()
        assert scheduler.step_update(10) == pytest.approx(1.0)
        assert scheduler.step_update(100) == 0
        assert scheduler.step_update(10) == pytest.approx(1.0)
        scheduler.step_begin_epoch(3)
        assert scheduler.optimizer.set_lr.call_args.args == (pytest.approx(1.0),)
        assert self.make(stage_updates="", max_update=50).stage_updates == [50]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"stage_updates": ""}, "`--max-update`"),
            ({"warmup_updates": 100}, "`--warmup-updates` must be below the 100"),
            ({"lr": [1.0, 2.0, 3.0]}, "`--lr` must be one rate, or one for each of 2 stages"),
        ],
    )
    def test_refuses(self, options: dict, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            self.make(**options)


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("name", switches.PRESETS)
def test_every_row_decodes_as_it_trains_in_every_stage(name: str, stage: int) -> None:
    """Step by step as at once, and alone as in a batch with pads on either side."""
    model, _ = build([*BMT, "--bmt-preset", name])
    model = model.double()
    model.binary_stage.enter(stage)
    test_laws.compare_steps_with_full(model, 1e-12, 1e-12)
    test_laws.compare_alone_with_batch(model, 1e-12)
    test_laws.test_future_words_change_nothing_earlier(model, name)


COMPOSED = {"transformer": STOCK, "muse": models.MUSE, "linformer": models.LINFORMER}


@pytest.mark.parametrize("architecture", COMPOSED)
class TestOtherArchitectures:
    def test_layers_are_exchanged_and_parameters_kept(self, architecture: str) -> None:
        plain, _ = build(COMPOSED[architecture])
        binary, _ = build([*COMPOSED[architecture], *models.ALL_LAYERS])
        assert set(binary.state_dict()) - set(plain.state_dict()) == {"binary_stage.current"}
        for name, parameter in plain.named_parameters():
            assert parameter.equal(binary.get_parameter(name)), name
        exchanged = set(binary_layers(binary))
        unchanged = {n for n, m in binary.named_modules() if type(m) is nn.Linear} - exchanged
        assert {name.split(".")[-1] for name in unchanged} <= {"predictor", "output_projection"}
        assert not any(type(module) is MultiheadAttention for module in binary.modules())

    def test_float_stage_is_the_float_model(self, architecture: str) -> None:
        plain, _ = build(COMPOSED[architecture])
        flags = [*models.ALL_LAYERS, "--stage-updates", "1,1,1"]
        binary, _ = build([*COMPOSED[architecture], *flags])
        assert same_logits(plain, binary, atol=1e-6)
        binary.set_num_updates(1)
        assert not same_logits(plain, binary, atol=1e-3)

    def test_only_what_is_named(self, architecture: str) -> None:
        binary, _ = build([*COMPOSED[architecture], "--binary-weights", "ffn"])
        names = {name.split(".")[-1] for name in binary_layers(binary)}
        assert names == {"fc1", "fc2"}


def test_engine_names_the_option_that_binary_inputs_need() -> None:
    flags = ["--arch", "binary_transformer", *models.SMALL, "--binary-activations", "ffn,qk"]
    model, task = build(flags)
    with pytest.raises(ConfigError, match="; name their products in `--binary-weights`, too"):
        compile_model(model, task.target_dictionary)


class OtherAttention(MultiheadAttention):
    """An attention that inherits the code that reads the projections' weights directly."""


@pytest.mark.parametrize("products", ["ffn", "qkv", "out"])
def test_projections_of_another_attention_cannot_be_binarized(products: str) -> None:
    model, _ = build(STOCK)
    model.encoder.layers[0].self_attn.__class__ = OtherAttention
    cfg = models.configuration([*STOCK, "--binary-weights", products]).model
    if products == "ffn":
        compose.binarize_model(model, cfg)
    else:
        with pytest.raises(ConfigError, match="OtherAttention, a subclass of fairseq's"):
            compose.binarize_model(model, cfg)


class FusedLayerNorm(nn.Module):
    """The layer norm of apex: not a subclass of torch's."""

    def __init__(self, shape: int, eps: float = 1e-5, elementwise_affine: bool = True) -> None:
        super().__init__()
        self.normalized_shape, self.eps = (shape,), eps
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))


def test_layer_norms_of_apex_have_the_papers_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_norm, "has_fused_layernorm", True)
    monkeypatch.setattr(layer_norm, "FusedLayerNorm", FusedLayerNorm, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model, _ = build(BMT)
    norms = [module for module in model.modules() if isinstance(module, FusedLayerNorm)]
    assert norms
    assert {module.eps for module in norms} == {1e-6}


def test_beam_search_may_share_the_source_after_training_with_another_size() -> None:
    """A generator sets the beam size of attentions; training afterwards has a sentence in a row."""
    model, _ = build(BMT)
    before = logits(model)
    for module in model.modules():
        if hasattr(module, "set_beam_size"):
            module.set_beam_size(3)
    assert logits(model).equal(before)


# The criterion ``distillation`` is its definition, in chunks and with all logits at once
PAD = 1
TEMPERATURE, WEIGHT = 2.5, 0.4


def scattered(name: str, seed: int) -> BaseFairseqModel:
    """A model in float64 whose predictions are far from uniform."""
    model = models.build(models.ARCHITECTURES[name], seed=seed)[0].double().train()
    for parameter in model.parameters():
        parameter.data *= 2
    return model


def taught(monkeypatch, teacher, **options: float) -> distillation.DistillationCriterion:
    monkeypatch.setattr(distillation, "load_teacher", lambda path, task: teacher)
    task = SimpleNamespace(target_dictionary=models.dictionary())
    return distillation.DistillationCriterion(task, False, "teacher.pt", **options).train()


def definition(student: BaseFairseqModel, teacher: BaseFairseqModel) -> tuple[Tensor, Tensor]:
    """The loss of every real word, and its negative log-likelihood."""
    sample = models.batch()
    real = sample["target"].ne(PAD)
    z = student(**sample["net_input"])[0][real]
    y = teacher(**sample["net_input"])[0][real].detach()

    def log_softmax(x: Tensor) -> Tensor:
        return x - x.exp().sum(-1, keepdim=True).log()

    nll = -log_softmax(z)[range(len(z)), sample["target"][real]]
    p, log_q = log_softmax(y / TEMPERATURE).exp(), log_softmax(z / TEMPERATURE)
    soft = -(TEMPERATURE**2) * (p * log_q).sum(-1)
    return WEIGHT * soft + (1 - WEIGHT) * nll, nll


@pytest.mark.parametrize("all_logits", [False, True])
def test_the_loss_and_its_gradients(all_logits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch with pads, by a teacher of another architecture."""
    student, teacher = scattered("bmt-float", 0), scattered("gru", 1).eval().requires_grad_(False)
    loss, nll = definition(student, teacher)
    weights = list(student.parameters())
    gradients = torch.autograd.grad(loss.sum(), weights)
    assert not torch.isclose(loss.sum(), nll.sum(), rtol=0.1)

    student.find_unused_parameters = all_logits
    criterion = taught(monkeypatch, teacher, temperature=TEMPERATURE, teacher_weight=WEIGHT)
    assert (speed.obstacle(criterion, student) is not None) == all_logits
    actual, _, logged = criterion(student, models.batch())
    # fairseq takes the likelihood of the references in fp32 where it has all logits.
    precise = {"rtol": 1e-5, "atol": 1e-5} if all_logits else {"rtol": 1e-9, "atol": 1e-11}
    torch.testing.assert_close(actual, loss.sum(), check_dtype=not all_logits, **precise)
    assert float(logged["nll_loss"]) == pytest.approx(nll.sum().item(), rel=precise["rtol"])
    torch.testing.assert_close(torch.autograd.grad(actual, weights), gradients, **precise)


def test_the_losses_of_single_words_and_of_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation is on the references."""
    student, teacher = scattered("bmt-float", 0), scattered("gru", 1).eval()
    expected, _ = definition(student, teacher)
    criterion = taught(monkeypatch, teacher, temperature=TEMPERATURE, teacher_weight=WEIGHT)
    target = models.batch()["target"]
    actual = criterion(student, models.batch(), reduce=False)[0].view(target.shape)
    real = target.ne(PAD)
    torch.testing.assert_close(actual[real].double(), expected, rtol=1e-5, atol=1e-5)
    assert actual[~real].eq(0).all()
    _, nll = definition(student.eval(), teacher)
    actual = criterion.eval()(student, models.batch())[0]
    assert actual.item() == pytest.approx(nll.sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "`--temperature` must be above 0, but is 0.0"),
        ({"temperature": float("nan")}, "`--temperature` must be above 0, but is nan"),
        ({"teacher_weight": -0.1}, "`--teacher-weight` must be from 0 to 1, but is -0.1"),
        ({"teacher_weight": 1.1}, "`--teacher-weight` must be from 0 to 1, but is 1.1"),
    ],
)
def test_refuses(options: dict[str, float], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=message):
        taught(monkeypatch, None, **options)
