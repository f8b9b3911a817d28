"""Binarization and the layers of BMT against closed forms and the paper's equations."""

import pytest
import torch
from torch import Tensor, nn

from fairseq_ext.base.dropout import draw
from fairseq_ext.binary import attention as products
from fairseq_ext.binary import reference
from fairseq_ext.binary.attention import BinaryAttention
from fairseq_ext.binary.binarize import EPSILON, TERNARY, Binarizer
from fairseq_ext.binary.linear import BinaryLinear, FeedForwardOutput
from tests.support.gradients import assert_same_function

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
BOTH = {"weights": True, "inputs": True}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


class TestBinarizer:
    @pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (1, 4096)])
    def test_is_the_papers_formula(self, shape: tuple[int, ...]) -> None:
        x = random(*shape)
        torch.testing.assert_close(Binarizer()(x), reference.binarized(x), rtol=1e-15, atol=0)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_has_two_levels_in_every_precision(self, dtype: torch.dtype) -> None:
        x = torch.cat([random(50, dtype=dtype), torch.tensor([0.0, -0.0, 3.0, -3.0], dtype=dtype)])
        for scale in (1.0, 2.0**-9, 1000.0, 1.37):
            scaled = x * scale
            half = scaled.abs().max() / 2
            signs = Binarizer()(scaled)
            assert set(signs.tolist()) == {half.item(), -half.item()}
            assert signs[scaled == 0].eq(half).all()
            assert signs.sign().equal(torch.where(scaled >= 0, 1.0, -1.0).to(dtype))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_of_zeros(self, dtype: torch.dtype) -> None:
        """Section 3.1: 1 for x in [-B, B], which is {0}. A product with the level 0 has none."""
        for form in (Binarizer(), Binarizer(mask="paper"), Binarizer(kind="xnor")):
            x = torch.zeros(2, 8, dtype=dtype, requires_grad=True)
            signs, level = form.signs(x)
            (form(x) * 3 + signs * level * 5).sum().backward()
            assert x.grad.eq(0 if form.kind == "xnor" else 3).all()
            assert form(x).eq(0).all()
            assert (signs * level).eq(0).all()

    @pytest.mark.parametrize("mask", ["code", "paper"])
    def test_gradient_is_the_closed_form(self, mask: str) -> None:
        x, c = random(4, 33), random(4, 33, seed=1)
        x[0, 3] = x[0].abs().max() * (1 - EPSILON / 2)  # between the two limits
        x.requires_grad_()
        (Binarizer(mask=mask)(x) * c).sum().backward()
        limit = x.detach().abs().amax(-1, keepdim=True) * (1 - EPSILON if mask == "code" else 1)
        assert x.grad.equal(c * (x.detach().abs() <= limit))
        blocked = x.grad.eq(0).sum(-1).tolist()
        assert blocked == ([2, 1, 1, 1] if mask == "code" else [0] * 4)

    @pytest.mark.parametrize("mask", ["code", "paper"])
    def test_fixed_bound(self, mask: str) -> None:
        x = torch.tensor([-2.0, -1.0, -0.995, -0.5, 0.0, 0.5, 0.99, 1.0, 2.0], requires_grad=True)
        y = Binarizer(mask=mask, bound=1.0)(x)
        y.sum().backward()
        assert y.tolist() == [-0.5] * 4 + [0.5] * 5
        near = mask == "paper"
        assert x.grad.tolist() == [0, near, near, 1, 1, 1, 1, near, 0]

    def test_bound_of_a_tensor(self) -> None:
        x = random(5, 6)
        assert Binarizer()(x, (0, 1)).abs().eq(x.abs().max() / 2).all()

    def test_signs_times_level_is_the_same_function(self) -> None:
        for form in (Binarizer(), Binarizer(mask="paper"), Binarizer(kind="xnor")):
            x, other = random(3, 9).requires_grad_(), random(3, 9).requires_grad_()
            c = random(3, 9, seed=2)
            signs, level = form.signs(x)
            ((signs * level) * c).sum().backward()
            (form(other) * c).sum().backward()
            assert (signs * level).equal(form(other))
            torch.testing.assert_close(x.grad, other.grad, rtol=1e-15, atol=0)

    def test_subnormal_numbers_count_as_zero(self) -> None:
        x = (torch.tensor([[1.0, -0.5, 0.25, 0.0]]) * 1e-39).requires_grad_()
        signs, level = Binarizer().signs(x)
        (signs * level).sum().backward()
        assert x.grad.abs().max() < 1e-38

    @pytest.mark.parametrize("score_v", ["signed", "unsigned"])
    def test_products_of_small_numbers_have_gradients_in_fp16(self, score_v: str) -> None:
        q, k, v = (random(1, 1, 3, 8, seed=seed) for seed in range(3))
        v[0, 0, 1] *= 1e-5
        exact = [operand.half().double().requires_grad_() for operand in (q, k, v)]
        half = [operand.half().requires_grad_() for operand in (q, k, v)]
        for queries, keys, values in (exact, half):
            weights = products.attention_weights(queries, keys, None, binary=True)
            contexts = products.contexts(weights, values, None, nn.Identity(), score_v)
            (contexts * 0.1).sum().backward()  # of the tiny values it is large
        for rounded, expected in zip(half, exact, strict=True):
            torch.testing.assert_close(rounded.grad.double(), expected.grad, rtol=2e-2, atol=5e-3)

    @pytest.mark.parametrize("bound", [None, 3.0])
    def test_nan_stays_nan(self, bound: float | None) -> None:
        x = torch.tensor([[float("nan"), 1.0, -1.0], [float("inf"), 1.0, -1.0]])
        binarizer = Binarizer(bound=bound)
        assert binarizer(x)[0].isnan().all()
        layer = BinaryLinear(3, 2, inputs=True, input_binarizer=binarizer)
        assert layer(x)[0].isnan().all()
        if bound is not None:
            assert binarizer(x)[1].tolist() == [1.5, 1.5, -1.5]

    def test_xnor(self) -> None:
        x = (random(4, 31) * 1.5).requires_grad_()
        y = Binarizer(kind="xnor")(x)
        mean = x.detach().abs().mean(-1, keepdim=True)
        torch.testing.assert_close(y, torch.where(x >= 0, mean, -mean))
        y.sum().backward()
        assert x.grad.equal((x.detach().abs() <= 1) * mean)

    def test_ternary(self) -> None:
        """RoundClip(x / mean |x|, -1, 1) of b1.58; halves become 0, and every gradient passes."""
        x = torch.tensor([[3.0, -1.0, 0.5, 0.0, -0.5], [0.0] * 5, [1.0] * 5]).requires_grad_()
        y = Binarizer(TERNARY)(x)
        assert y.tolist() == [[1, -1, 0, 0, 0], [0] * 5, [1] * 5]
        (y * 3).sum().backward()
        assert x.grad.eq(3).all()
        x = random(4, 31)
        rounded = (x / x.abs().mean()).clamp(-1, 1).round() * x.abs().mean()
        torch.testing.assert_close(Binarizer(TERNARY)(x, (0, 1)), rounded, rtol=1e-15, atol=0)
        torch.testing.assert_close(reference.ternary(x, rows=False), rounded, rtol=1e-15, atol=0)


class TestBinaryLinear:
    @pytest.mark.parametrize("sizes", [(1, 1), (7, 3), (63, 5), (64, 130)])
    @pytest.mark.parametrize("bits", ["", "w", "a", "wa", "t", "ta"])
    def test_equals_the_reference(self, sizes: tuple[int, int], bits: str) -> None:
        options = {"weight_binarizer": Binarizer(TERNARY)} if "t" in bits else {}
        weights, inputs = "w" in bits or "t" in bits, "a" in bits
        layer = BinaryLinear(*sizes, weights=weights, inputs=inputs, scale=3.0, **options).double()
        x, scale = random(2, 3, sizes[0]).requires_grad_(), 3.0 if "a" in bits else 1.0
        expected = reference.dense(x, layer.weight, layer.bias, bits, scale)
        assert_same_function(layer(x), expected, [x, layer.weight, layer.bias])

    @pytest.mark.parametrize("inputs", [False, True])
    @pytest.mark.parametrize("granularity", ["channel", "tensor"])
    @pytest.mark.parametrize(
        "options",
        [{}, {"mask": "paper"}, {"bound": 0.2}, {"kind": "xnor"}, {"kind": TERNARY}],
        ids=str,
    )
    def test_gradients_are_those_of_the_binarized_operands(self, options, granularity, inputs):
        """All kinds, with dropped inputs, against torch's own product of both operands."""
        form = Binarizer(**options)
        how = {"granularity": granularity, "weight_binarizer": form, "input_binarizer": form}
        layer = BinaryLinear(33, 5, inputs=inputs, scale=3.0, **how).double()
        x = random(2, 4, 33).requires_grad_()
        torch.manual_seed(3)
        product = layer(x, nn.Dropout(0.5) if inputs else None)
        torch.manual_seed(3)
        mask, scale = draw(x, 0.5) if inputs else (1, 1.0)
        read = (form(x) / 3 if inputs else x) * mask * scale
        weight = form(layer.weight, 1 if granularity == "channel" else (0, 1))
        expected = nn.functional.linear(read, weight, layer.bias)
        assert_same_function(product, expected, [x, layer.weight, layer.bias])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_sum_that_is_zero_stays_zero_in_any_order(self, dtype: torch.dtype) -> None:
        """Equal numbers of both signs: rounding must not decide about the next layer's sign."""
        layer = BinaryLinear(64, 100, bias=False, **BOTH).to(dtype)
        x = random(200, 64, dtype=dtype)
        order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
        other = BinaryLinear(64, 100, bias=False, **BOTH).to(dtype)
        other.weight.data = layer.weight.data[:, order]
        y = layer(x)
        assert other(x[:, order]).equal(y)
        assert y.eq(0).float().mean() > 0.05
        assert layer(x[:1]).equal(y[:1])

    @pytest.mark.parametrize("inputs", [False, True])
    @pytest.mark.parametrize("kind", ["bmt", TERNARY])
    def test_a_fast_layer_keeps_its_function_until_others_are_loaded(self, kind, inputs):
        layer, other = (
            BinaryLinear(16, 8, inputs=inputs, weight_binarizer=Binarizer(kind)) for _ in range(2)
        )
        x = random(5, 16, dtype=torch.float32)
        before, weight = layer(x), layer.binarized_weight().detach().clone()
        layer.make_generation_fast_()
        layer.make_generation_fast_()
        assert layer.binarized_weight().equal(weight)
        for stage in (0, 1, 2):
            layer.set_stage(stage)
            assert layer(x).equal(before)
        layer.load_state_dict(other.state_dict())
        for stage in (2, 1, 0):
            layer.set_stage(stage), other.set_stage(stage)
            assert layer(x).equal(other(x))
        layer.make_generation_fast_()  # nothing is binary in stage 0
        layer.set_stage(2), other.set_stage(2)
        assert layer(x).equal(other(x))

    @pytest.mark.parametrize("inputs", [False, True])
    def test_a_vector_is_a_batch_of_one(self, inputs: bool) -> None:
        layer, x = BinaryLinear(8, 4, inputs=inputs), random(8, dtype=torch.float32)
        layer(x[None]).sum().backward()
        expected = [parameter.grad.clone() for parameter in layer.parameters()]
        layer.zero_grad()
        layer(x).sum().backward()
        for parameter, grad in zip(layer.parameters(), expected, strict=True):
            assert parameter.grad.equal(grad)

    def test_moves_as_a_whole_after_it_is_made_fast(self) -> None:
        layer = BinaryLinear(8, 4, inputs=True)
        saved = layer.state_dict().keys()
        layer.make_generation_fast_()
        assert layer.state_dict().keys() == saved
        layer.to("meta")
        assert layer.weight.is_meta
        assert layer.frozen_level.is_meta

    def test_takes_the_parameters_of_a_linear_layer(self) -> None:
        linear = nn.Linear(6, 5)
        binary = BinaryLinear.of(linear, **BOTH)
        assert binary.weight is linear.weight
        assert binary.bias is linear.bias
        assert list(binary.state_dict()) == list(linear.state_dict())
        assert BinaryLinear.of(nn.Linear(6, 5, bias=False)).bias is None

    def test_prints_its_bits(self) -> None:
        assert "weight_bits=1, input_bits=32" in repr(BinaryLinear(2, 3))
        ternary = BinaryLinear(2, 3, weight_binarizer=Binarizer(TERNARY))
        assert "weight_bits=1.58, input_bits=32" in repr(ternary)


@pytest.mark.parametrize("bits", ["", "w", "wa"])
def test_feed_forward_equals_the_reference(bits: str) -> None:
    options = {"weights": "w" in bits, "inputs": "a" in bits}
    fc1 = BinaryLinear(7, 21, **options).double()
    fc2 = FeedForwardOutput(BinaryLinear(21, 7, **options), nn.Identity()).double()
    parameters = with_noise(nn.ModuleDict({"fc1": fc1, "fc2": fc2}))
    x = random(5, 7).requires_grad_()
    expected = reference.feed_forward(x, parameters, bits, 1e-5)
    assert_same_function(fc2(fc1(x).relu()), expected, [x, *parameters.values()], atol=1e-11)


@pytest.mark.parametrize("first", [False, True])
def test_dropout_before_or_after_binarizing(first: bool) -> None:
    """Before, a dropped number is +B/2; after, it counts as nothing."""
    dropout = nn.Dropout(1.0)  # drops everything
    output = FeedForwardOutput(BinaryLinear(6, 4, bias=False, **BOTH), dropout, False, first)
    y = output(random(3, 6, dtype=torch.float32))
    assert y.eq(0).all()  # a row of zeros has bound 0
    half = nn.Dropout(0.5)
    torch.manual_seed(0)
    output = FeedForwardOutput(BinaryLinear(64, 1, bias=False, **BOTH), half, False, first)
    output.linear.weight.data.fill_(1.0)
    negative = -torch.ones(50, 64)
    assert (output(negative).mean() > -3) == first  # -16 = 64 · 1/4 · -1 in the mean, without


def with_noise(module: nn.Module) -> dict[str, Tensor]:
    """Its parameters, norms and biases included, away from 0 and 1."""
    torch.manual_seed(5)
    parameters = dict(module.named_parameters())
    for parameter in parameters.values():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return parameters


PRODUCT_BITS = {
    "float": ({"qkv": "", "out": "", "qk": ""}, None),
    "bmt-1": ({"qkv": "w", "out": "w", "qk": ""}, None),
    "bmt-6": ({"qkv": "wa", "out": "wa", "qk": ""}, None),
    "bmt-7": ({"qkv": "w", "out": "w", "qk": "a"}, None),
    "bmt-8": ({"qkv": "w", "out": "w", "qk": "a"}, "signed"),
    "unsigned": ({"qkv": "w", "out": "w", "qk": "a"}, "unsigned"),
}


@pytest.mark.parametrize("row", PRODUCT_BITS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_the_reference(row: str, causal: bool) -> None:
    bits, score_v = PRODUCT_BITS[row]
    dim, heads, length = 12, 3, 5
    form = {"norm_heads": True, "norm_output": True, "shortcut": True, "score_v": score_v}
    form |= {"self_attention": True, "bias": False, "qk": "a" in bits["qk"]}
    module = BinaryAttention(dim, heads, **form)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        kind = bits["out" if name == "out_proj" else "qkv"]
        options = {"weights": "w" in kind, "inputs": "a" in kind}
        setattr(module, name, BinaryLinear(dim, dim, bias=False, **options))
    parameters = with_noise(module.double())
    x = random(length, 2, dim, seed=6).requires_grad_()
    pads = torch.tensor([[False] * 5, [True, True, False, False, False]])
    future = torch.full((5, 5), -torch.inf).triu(1) if causal else None
    if causal:
        pads = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    y, _ = module(x, x, x, key_padding_mask=pads, attn_mask=future)
    expected = []
    for sentence in range(2):
        words = [j for j in range(length) if not pads[sentence, j]]
        visible = torch.ones(len(words), len(words), dtype=torch.bool)
        visible = visible.tril() if causal else visible
        unpadded = x[words, sentence]
        options = (visible, parameters, heads, bits, 1e-5, score_v)
        expected.append(reference.attention(unpadded, unpadded, *options))
    actual = y.transpose(0, 1)[~pads]
    assert_same_function(actual, torch.cat(expected), [x, *parameters.values()], atol=1e-10)
