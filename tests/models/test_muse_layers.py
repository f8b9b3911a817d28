"""Each layer of MUSE against the reference from the paper's equations, in float64."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from fairseq.modules.dynamic_convolution import DynamicConv1dTBC
from torch import Tensor, nn

from fairseq_ext.base.dropout import active_rate, draw, dropout
from fairseq_ext.muse import attention, convolution, reference
from fairseq_ext.muse.block import ParallelBlock
from fairseq_ext.muse.convolution import DynamicConvolution, band, convolve, taps_to_the_left
from fairseq_ext.muse.projections import FinalLinear
from tests.support.gradients import assert_same_function

HEADS, DIM = 2, 6
KERNELS = [*((k,) for k in (1, 2, 3, 4, 5, 6, 7, 8, 15, 31)), (3, 15), (15, 3), (4, 3, 2)]
VARIANTS = {
    "simple": {},
    "gated": {"kernel_sizes": (3, 5)},
    "single": {"kernel_sizes": (4,)},
    "separate": {"kernel_sizes": (3, 5), "separate": True},
    "ordinary": {"kernel_sizes": (3,), "ordinary": True},
    "ordinary-even": {"kernel_sizes": (4,), "ordinary": True},
    "pre-norm": {"kernel_sizes": (2, 3), "normalize_before": True},
}


def random_(module: nn.Module) -> nn.Module:
    """Biases, gates and norms too: with zero biases many a mistake does not show."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        parameter.data = values * 0.5
    return module.eval()


def tensor(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.double).requires_grad_()


def dynamic(sizes: tuple[int, ...], causal: bool) -> DynamicConvolution:
    return random_(DynamicConvolution(DIM, HEADS, sizes, causal))


@pytest.mark.parametrize("longest_band", [0, 64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", KERNELS, ids=str)
def test_convolution_equals_the_reference(sizes, causal, longest_band, monkeypatch):
    """Both paths; lengths below and above the kernels' sizes."""
    monkeypatch.setattr(convolution, "longest_band", lambda kernel_size: longest_band)
    monkeypatch.setattr(attention, "longest_band", lambda kernel_size: longest_band)
    module = dynamic(sizes, causal)
    for length in (1, 2, 3, 11):
        values = tensor(length, 2, DIM)
        form = (module.predictor.weight, module.gate, HEADS, sizes, causal)
        naive = [reference.gated_convolutions(values[:, b], *form) for b in range(2)]
        inputs = [values, *module.parameters()]
        assert_same_function(module(values), torch.stack(naive, 1), inputs)


@pytest.mark.parametrize("sizes", [(3,), (15,), (3, 15)], ids=str)
@pytest.mark.parametrize("length", [2, 9, 70])
def test_convolution_equals_fairseqs(sizes: tuple[int, ...], length: int) -> None:
    """A sum of fairseq's own modules, for odd kernels, which are all it can centre."""
    for causal in (False, True):
        module = dynamic(sizes, causal)
        values = tensor(length, 3, DIM)
        logits_of_heads = module.predictor.weight.detach().view(HEADS, -1, DIM).split(sizes, 1)
        expected = 0
        for k, weight, share in zip(sizes, logits_of_heads, module.gate_values(), strict=True):
            peer = DynamicConv1dTBC(
                DIM, k, taps_to_the_left(k, causal), num_heads=HEADS, weight_softmax=True
            )
            peer.weight_linear.weight.data = weight.reshape(-1, DIM)
            expected = expected + share * peer.double()(values, unfold=False)
        assert_same_function(module(values), expected, [values])


@pytest.mark.parametrize("length", [1, 5, 65])
def test_paths_agree_and_their_gradients_are_true(length: int) -> None:
    values, weights = tensor(2, length, 3), tensor(2, length, 4, seed=2)
    for left in range(4):
        by_band = torch.bmm(band(weights, left), values)
        by_loop = convolution._TapLoop.apply(values, weights, left)
        for convolved in (by_loop, convolve(values, weights, left)):
            assert_same_function(convolved, by_band, [values, weights])
    small = tensor(2, 5, 3), tensor(2, 5, 4, seed=2)
    assert torch.autograd.gradcheck(lambda v, w: convolution._TapLoop.apply(v, w, 1), small)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_many_taps_are_rounded_once(dtype: torch.dtype) -> None:
    """The tap loop is as exact as a matrix product, but for its gradient of each tap: two steps."""
    values = tensor(2, 200, 8).to(dtype)
    weights = torch.softmax(tensor(2, 200, 31, seed=2), -1).to(dtype)
    grad = tensor(2, 200, 8, seed=3).to(dtype)

    def results(path: Callable[..., Tensor], kind: torch.dtype) -> list[Tensor]:
        operands = [operand.detach().to(kind).requires_grad_() for operand in (values, weights)]
        out = path(*operands)
        assert out.dtype == kind
        return [out, *torch.autograd.grad(out, operands, grad.to(kind))]

    def by_band(values: Tensor, weights: Tensor) -> Tensor:
        return torch.bmm(band(weights, 15), values)

    def by_loop(values: Tensor, weights: Tensor) -> Tensor:
        return convolution._TapLoop.apply(values, weights, 15)

    exact = results(by_band, torch.float64)
    pairs = zip(results(by_loop, dtype), results(by_band, dtype), exact, strict=True)
    for (loop, matrix, true), limit in zip(pairs, (1.1, 1.1, 2), strict=True):
        assert (loop - true).norm() <= limit * (matrix - true).norm()


def test_taps_are_where_equation_6_has_them() -> None:
    for k in range(1, 9):
        assert taps_to_the_left(k, causal=False) == math.ceil((k + 1) / 2) - 1
        assert taps_to_the_left(k, causal=True) == k - 1
    values = tensor(1, 6, 2)
    for k in (1, 3, 4):
        for tap in range(k):
            weights = torch.zeros(1, 6, k, dtype=torch.double)
            weights[..., tap] = 1
            shifted = torch.zeros_like(values)
            steps = k - 1 - tap
            shifted[:, steps:] = values[:, : 6 - steps]
            assert convolve(values, weights, k - 1).equal(shifted)


def test_kernels_are_softmaxes_whatever_the_border() -> None:
    """Their sum is 1 before the cut, below 1 after it, and nothing is renormalized."""
    module = dynamic((3, 5), causal=True)
    weights = module.kernels(tensor(4, 1, DIM))
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 1, HEADS).double())
    constant = torch.ones(1, 4, 3, dtype=torch.double)
    convolved = convolve(constant, weights[:, :, 0].transpose(0, 1), module.left)[0, :, 0]
    for t, value in enumerate(convolved):
        torch.testing.assert_close(value, weights[t, 0, 0, -(t + 1) :].sum())
    assert convolved[0] < 0.99
    assert convolved[3] < 1


def test_gate_of_one_kernel_is_one_and_of_several_starts_uniform() -> None:
    module = DynamicConvolution(DIM, HEADS, (7,), causal=False)
    assert module.gate is None
    assert module.gate_values().equal(torch.ones(1))
    module = DynamicConvolution(DIM, HEADS, (1, 3, 5), causal=False)
    torch.testing.assert_close(module.gate_values(), torch.full((3,), 1 / 3))


def test_kernel_dropout_scales_after_the_softmax() -> None:
    module = DynamicConvolution(DIM, HEADS, (3,), True, nn.Dropout(0.5)).double()
    values = tensor(50, 2, DIM)
    undropped = module.eval().kernels(values)
    torch.manual_seed(0)
    dropped = module.train().kernels(values)
    is_kept = dropped != 0
    assert 0.4 < is_kept.double().mean() < 0.6
    torch.testing.assert_close(dropped[is_kept], 2 * undropped[is_kept])


def build(variant: str, decoder: bool, **values: object) -> ParallelBlock:
    options = {**VARIANTS[variant], **values}
    sides = {"causal": True, "source_dim": 5} if decoder else {}
    block = random_(ParallelBlock(DIM, 7, HEADS, **options, **sides))
    block.projections.make_generation_fast_()  # joins the matrices if they are fused
    return block


def causal_mask(length: int) -> Tensor:
    return torch.full((length, length), -torch.inf, dtype=torch.double).triu(1)


def run(block: ParallelBlock, x: Tensor, source: Tensor | None) -> Tensor:
    if source is None:
        return block(x, None)[0]
    return block(x, None, causal_mask(len(x)), block.source(source, None))[0]


@pytest.mark.parametrize("longest_band", [0, 64])
@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_block_equals_the_reference(variant, decoder, length, longest_band, monkeypatch):
    monkeypatch.setattr(convolution, "longest_band", lambda kernel_size: longest_band)
    monkeypatch.setattr(attention, "longest_band", lambda kernel_size: longest_band)
    block = build(variant, decoder)
    x, source = tensor(length, 2, DIM), tensor(4, 2, 5, seed=3) if decoder else None
    form = (HEADS, VARIANTS[variant].get("kernel_sizes", ()))
    options = {"normalize_before": VARIANTS[variant].get("normalize_before", False)}
    weights, expected = dict(block.named_parameters()), []
    for b in range(2):
        options |= {"causal": decoder, "source": source[:, b] if decoder else None}
        expected.append(reference.block(weights, x[:, b], *form, **options))
    expected, read = torch.stack(expected, 1), [x, source] if decoder else [x]
    assert_same_function(run(block, x, source), expected, [*read, *weights.values()], atol=1e-11)

    fused = build(variant, decoder, fused=True)
    assert fused.projections.w_enc is not None
    assert fused.state_dict().keys() == block.state_dict().keys()
    torch.testing.assert_close(run(fused, x, source), expected, rtol=0, atol=1e-11)


def branches(variant: str, name: str = "weight", part: int = 0, change: float = 0.0) -> list:
    """The results of attention and convolution, after a change of a part of the projection."""
    block, outputs = build(variant, decoder=False), []
    block.attention.register_forward_hook(lambda m, i, o: outputs.extend(o.split(DIM, -1)))
    getattr(block.projections.in_proj, name).data[part * DIM : (part + 1) * DIM] += change
    run(block, tensor(5, 2, DIM), None)
    return outputs


def test_shared_values_make_kernels_and_queries_do_not() -> None:
    """Kernels come from V with its bias: W_v and b_v move them, W_q, W_k do not."""
    attended, convolved = branches("gated")
    for name, part in (("weight", 0), ("weight", 1), ("weight", 2), ("bias", 2)):  # of q, k, v
        other_attended, other_convolved = branches("gated", name, part, change=0.1)
        assert not other_attended.allclose(attended)
        assert other_convolved.equal(convolved) == (part < 2)
    kernels, values = build("gated", decoder=False).attention.convolution.kernels, tensor(5, 2, DIM)
    assert not kernels(values + 0.1).allclose(kernels(values))


def test_separate_values_are_the_convolutions_own() -> None:
    attended, convolved = branches("separate")
    of_v, conv_of_v = branches("separate", part=2, change=0.1)
    of_u, conv_of_u = branches("separate", part=3, change=0.1)
    assert conv_of_v.equal(convolved)
    assert not of_v.allclose(attended)
    assert of_u.equal(attended)
    assert not conv_of_u.allclose(convolved)


def test_permuting_heads_permutes_nothing_else() -> None:
    block, other = build("gated", decoder=False), build("gated", decoder=False)
    order = torch.tensor([3, 4, 5, 0, 1, 2])  # channels of head 1, then of head 0
    projections, shuffled = block.projections, other.projections
    rows = torch.cat([order, order + DIM, order + 2 * DIM])
    shuffled.in_proj.weight.data = projections.in_proj.weight[rows].detach()
    shuffled.in_proj.bias.data = projections.in_proj.bias[rows].detach()
    columns = torch.cat([order, order + DIM])
    shuffled.out_proj.weight.data = projections.out_proj.weight[:, columns].detach()
    predictor = block.attention.convolution.predictor.weight.detach()
    by_head = predictor.view(HEADS, -1, DIM).flip(0)[..., order]
    other.attention.convolution.predictor.weight.data = by_head.reshape(-1, DIM)
    x = tensor(5, 2, DIM)
    torch.testing.assert_close(run(other, x, None), run(block, x, None), rtol=0, atol=1e-12)


def test_cross_attention_reads_the_blocks_input() -> None:
    """The results of self-attention and convolution do not reach it."""
    calls = []
    for scale in (1.0, 0.0, 3.0):
        block = build("gated", decoder=True)
        block.cross.register_forward_hook(lambda m, i, o: calls.append(o))
        block.projections.out_proj.weight.data *= scale
        block.attention.convolution.predictor.weight.data *= scale
        run(block, tensor(4, 2, DIM), tensor(3, 2, 5))
    for contexts, weights in calls[1:]:
        assert contexts.equal(calls[0][0])
        assert weights.equal(calls[0][1])


def test_initialization_is_the_papers() -> None:
    """Uniform, each matrix within its own bound and up to 1 % of it; biases 0."""
    torch.manual_seed(0)
    dim, ffn, source = 64, 96, 80
    state = ParallelBlock(dim, ffn, 4, (3, 15), causal=True, source_dim=source).state_dict()
    fan_in = 1 / math.sqrt(dim)
    names = [f"projections.{name}" for name in ("in_proj", "cross_query", "fc1")]
    bounds = {
        **dict.fromkeys([*names, "attention.convolution.predictor"], fan_in),
        "cross_key_value": 1 / math.sqrt(source),
        "projections.out_proj": math.sqrt(3 / (2 * dim)),
        "projections.cross_out": math.sqrt(3 / dim),
        "projections.fc2": 1 / math.sqrt(ffn),
    }
    for name, bound in bounds.items():
        weight = state.pop(f"{name}.weight")
        assert 0.99 * bound < weight.abs().max() <= bound, name
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
        assert state.pop(f"{name}.bias", torch.zeros(1)).eq(0).all(), name
    assert state.keys() == {"attention.convolution.gate", "layer_norm.weight", "layer_norm.bias"}


@pytest.mark.parametrize("fused", [False, True])
def test_each_branch_has_a_dropout_of_its_own(fused: bool) -> None:
    block = build("gated", True, fused=fused, dropout=0.5).train()
    drawn = []
    block.dropout.register_forward_hook(lambda m, i, o: drawn.append(o == 0))
    run(block, tensor(20, 3, DIM), tensor(4, 3, 5))
    assert len(drawn) == 3
    for first in range(3):
        assert 0.35 < drawn[first].double().mean() < 0.65
        assert not drawn[first].equal(drawn[first - 1])
    block.eval()
    assert run(block, tensor(4, 3, DIM), tensor(4, 3, 5)).equal(
        run(block, tensor(4, 3, DIM), tensor(4, 3, 5))
    )
    assert not active_rate(block.dropout)


@pytest.mark.parametrize("fused", [False, True])
def test_input_dropout_reaches_attention_and_convolution_alone(fused: bool) -> None:
    block = build("ordinary", True, fused=fused, input_dropout=0.5).train()
    read = []
    plain = block.projections.read
    block.projections.read = lambda x, x_self: read.append((x, x_self)) or plain(x, x_self)
    x = tensor(8, 2, DIM)
    run(block, x, tensor(3, 2, 5))
    ((all_else, projected),) = read
    assert all_else is x
    assert 0.3 < projected.eq(0).double().mean() < 0.7
    hidden, own_rows = plain(x, projected)[-1], plain(x, projected)[0]
    torch.testing.assert_close(hidden, plain(x, x)[-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(own_rows, plain(projected, projected)[0], rtol=0, atol=1e-12)


def test_a_final_layer_is_a_linear_layer() -> None:
    """On packed weights, as a copy, with a gradient, and in another type."""
    linear, x = nn.Linear(24, 40), torch.randn(3, 1, 48)[..., :24]  # rows apart, as after a split
    final = FinalLinear(linear.weight, linear.bias)
    assert (final._packed is not None) == torch.backends.mkldnn.is_available()
    torch.testing.assert_close(final(x), linear(x), rtol=0, atol=1e-5)
    assert copy.deepcopy(final)(x).equal(linear(x))
    assert_same_function(final(x.requires_grad_()), linear(x), [x])
    assert final.double()(x.double()).equal(linear.double()(x.double()))


@pytest.mark.parametrize("p", [0.1, 0.4, 0.75])
def test_dropout_keeps_each_value_with_its_probability(p: float) -> None:
    x = torch.rand(101, 1001).add_(0.5).requires_grad_()
    torch.manual_seed(0)
    out = dropout(x, p)
    is_kept = out != 0
    torch.testing.assert_close(out[is_kept], x[is_kept] / (1 - p), rtol=1e-4, atol=0)
    for lane in range(4):  # four values come from one draw
        share = is_kept.flatten()[lane::4].double()
        error = 5 * math.sqrt(p * (1 - p) / share.numel())
        assert share.mean().item() == pytest.approx(1 - p, abs=error)
        other = is_kept.flatten()[(lane + 1) % 4 :: 4][: share.numel()].double()
        together = (share[: other.numel()] * other).mean().item()
        assert together == pytest.approx((1 - p) ** 2, abs=2 * error)  # and are independent
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, is_kept / (1 - p), rtol=1e-4, atol=0)
    torch.manual_seed(0)
    assert (dropout(torch.ones(101, 1001), p) != 0).equal(is_kept)
    assert dropout(x, 1.0).eq(0).all()
    assert not draw(x, 1.0)[0].any()
    assert dropout(torch.ones(3, dtype=torch.bfloat16), p).dtype == torch.bfloat16
