"""Linformer attention against the reference from its equations, in float64."""

import math

import pytest
import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor
from torch.nn import functional

from fairseq_ext.linformer import reference
from fairseq_ext.linformer.attention import LengthProjection, LinformerAttention
from fairseq_ext.utils.errors import CheckpointError, DataError
from tests.support.gradients import assert_same_function

WIDTH, HEADS, SLOTS, MAX_LEN = 12, 3, 5, 67
KINDS = ["learned", "mean-pool", "convolution"]


def attention(
    *,
    width: int = WIDTH,
    heads: int = HEADS,
    slots: int = SLOTS,
    max_len: int = MAX_LEN,
    seed: int = 0,
    scale: str = "head-dim",
    compress_first: bool | None = None,
    **options: object,
) -> LinformerAttention:
    """An attention with random biases and noise on E and F, in float64."""
    torch.manual_seed(seed)
    projection = LengthProjection(slots, max_len, **options)
    how = {"scale": scale, "compress_first": compress_first}
    layer = LinformerAttention(width, heads, projection, **how).double()
    projection.reset_parameters()  # 1 / w in float64
    for parameter in layer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return layer


def expected_attention(
    layer: LinformerAttention, query: Tensor, source: Tensor, scale: str
) -> Tensor:
    """The reference for one sentence: ``[T, C]`` from ``[L, C]``."""
    projection = layer.projection
    shape = (projection.kind, projection.slots, projection.max_len)
    e, f = (reference.matrix(*shape, projection.weight[index]) for index in (0, -1))
    return reference.attention(
        dict(layer.named_parameters()), query, source, e, f, layer.num_heads, scale
    )


def mask(lengths: list[int], width: int) -> Tensor:
    return torch.arange(width) >= torch.tensor(lengths).unsqueeze(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("compress_first", [False, True])
@pytest.mark.parametrize(
    ("targets", "lengths", "extra", "scale"),
    [(1, [1], 0, "head-dim"), (2, [3, 1, 2], 2, "model-dim"), (3, [63, 7], 0, "head-dim")],
)
def test_equals_the_reference_with_all_gradients(
    kind, shared, compress_first, targets, lengths, extra, scale
) -> None:
    layer = attention(kind=kind, shared=shared, compress_first=compress_first, scale=scale)
    width = max(lengths) + extra
    query = torch.randn(targets, len(lengths), WIDTH).double().requires_grad_()
    source = torch.randn(width, len(lengths), WIDTH).double().requires_grad_()
    actual = layer(query, source, mask(lengths, width))
    sentences = [(query[:, b], source[:n, b]) for b, n in enumerate(lengths)]
    naive = torch.stack([expected_attention(layer, q, s, scale) for q, s in sentences], dim=1)
    assert_same_function(actual, naive, [query, source, *layer.parameters()], atol=1e-11)
    with torch.no_grad():
        without_gradients = layer(query, source, mask(lengths, width))
    torch.testing.assert_close(without_gradients, naive, rtol=0, atol=1e-12)


@pytest.mark.parametrize("compress_first", [False, True])
def test_gradients_equal_finite_differences(compress_first: bool) -> None:
    layer = attention(width=4, heads=2, slots=2, max_len=6, compress_first=compress_first)
    query, source = (torch.randn(n, 2, 4).double().requires_grad_() for n in (2, 5))
    pads = mask([5, 3], 5)
    assert torch.autograd.gradcheck(lambda q, s: layer(q, s, pads), (query, source))
    for parameter in layer.parameters():
        assert torch.autograd.gradcheck(
            lambda p: layer(query.detach(), source.detach(), pads), (parameter,)
        )


@pytest.mark.parametrize("compress_first", [False, True])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_as_many_slots_as_tokens_is_exact_attention(compress_first: bool, length: int) -> None:
    """With K = N = n, E = F = I, against fairseq's own attention."""
    torch.manual_seed(0)
    projection = LengthProjection(length, length)
    assert projection.weight.equal(torch.eye(length).expand(2, -1, -1))
    layer = LinformerAttention(WIDTH, HEADS, projection, compress_first=compress_first).double()
    exact = MultiheadAttention(WIDTH, HEADS, self_attention=True).double()
    exact.load_state_dict(
        {name: value for name, value in layer.state_dict().items() if "projection" not in name}
    )
    source = torch.randn(length, 2, WIDTH).double()
    expected, _ = exact(source, source, source, need_weights=False)
    torch.testing.assert_close(layer(source, source), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("compress_first", [False, True, None])
@pytest.mark.parametrize("junk", [1e4, math.nan, math.inf])
def test_rows_of_pads_change_nothing(compress_first: bool | None, junk: float) -> None:
    layer = attention(compress_first=compress_first)
    lengths = [9, 4, 1]
    query, source = torch.randn(2, 3, WIDTH).double(), torch.randn(9, 3, WIDTH).double()
    expected = layer(query, source, mask(lengths, 9))
    filled = torch.cat([source, torch.zeros(2, 3, WIDTH).double()])
    filled = filled.masked_fill(mask(lengths, 11).t().unsqueeze(-1), junk)
    actual = layer(query, filled, mask(lengths, 11))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_convolution_is_a_convolution_over_time() -> None:
    """Kernel and stride N / K, one kernel for all channels; the mean before training."""
    torch.manual_seed(0)
    projection = LengthProjection(4, 20, kind="convolution")
    pool = LengthProjection(4, 20, kind="mean-pool")
    assert projection(20).equal(pool(20))
    projection.weight.data.normal_()
    source = torch.randn(20, 3)
    kernel = projection.weight[1].view(1, 1, -1)
    expected = functional.conv1d(source.t().unsqueeze(1), kernel, stride=5)
    torch.testing.assert_close(projection(20)[1] @ source, expected.squeeze(1).t())
    torch.testing.assert_close(
        pool(20)[0] @ source, functional.avg_pool1d(source.t().unsqueeze(1), 5).squeeze(1).t()
    )


def test_identity_initialization() -> None:
    E = LengthProjection(3, 8)(8)[0]
    laps = torch.tensor([1.0, 1, 1, 1 / 2, 1 / 2, 1 / 2, 1 / 3, 1 / 3])
    expected = torch.zeros(3, 8)
    for token in range(8):
        expected[token % 3, token] = laps[token]
    assert E.equal(expected)


def test_normal_initialization() -> None:
    torch.manual_seed(0)
    weight = LengthProjection(64, 1024, init="normal").weight
    assert weight.std().item() == pytest.approx(1024**-0.5, rel=0.02)
    assert abs(weight.mean().item()) < 1e-3
    assert not weight[0].equal(weight[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("init", ["identity", "normal"])
@pytest.mark.parametrize("alike", [False, True])
@torch.no_grad()
def test_scores_stay_bounded_at_32768_tokens(dtype: torch.dtype, init: str, alike: bool) -> None:
    """Half precision holds them, for tokens that are independent and for tokens that are equal."""
    torch.manual_seed(0)
    length = 32768
    projection = LengthProjection(32, length, init=init)
    layer = LinformerAttention(64, 4, projection).to(dtype)
    source = torch.randn(1 if alike else length, 1, 64).expand(length, 1, 64).to(dtype)
    keys, values = layer.compress(source, None)
    queries = layer.q_proj(source[:64]).view(64, 4, 16).transpose(0, 1)
    scores = (queries @ keys[0].transpose(1, 2)).float() * layer.scaling
    assert scores.isfinite().all()
    assert scores.abs().max() < 40  # e^40 is far inside half precision's softmax in float32
    assert values.isfinite().all()
    assert layer(source[:64], source).isfinite().all()
    assert scores.std() > 1e-3


def test_sources_longer_than_the_projection_are_refused_with_both_numbers() -> None:
    layer = attention()
    with pytest.raises(DataError, match=r"68 tokens.*--linformer-max-len.*\(67\)"):
        layer(torch.zeros(1, 1, WIDTH).double(), torch.zeros(68, 1, WIDTH).double())


def reloaded(layer: LinformerAttention, max_len: int, **options: object) -> LinformerAttention:
    other = attention(max_len=max_len, seed=1, **options)
    saved = {name: value.clone() for name, value in layer.state_dict().items()}
    other.load_state_dict(saved)
    assert saved["q_proj.weight"].equal(layer.q_proj.weight)
    return other


@pytest.mark.parametrize("max_len", [40, 67, 128])
def test_checkpoint_fits_another_max_len(max_len: int) -> None:
    """Sources that both can read give the same; new columns are zero until they are trained."""
    layer = attention()
    other = reloaded(layer, max_len)
    query, source = torch.randn(2, 1, WIDTH).double(), torch.randn(40, 1, WIDTH).double()
    torch.testing.assert_close(other(query, source), layer(query, source), rtol=0, atol=1e-12)
    assert other.projection.weight.shape == (2, SLOTS, max_len)
    assert other.projection.weight[:, :, 67:].eq(0).all()
    longer = torch.randn(max_len, 1, WIDTH).double()
    other(query, longer).sum().backward()
    assert other.projection.weight.grad.abs().sum(1).gt(0).all()


def test_another_window_of_a_convolution_is_refused() -> None:
    layer = attention(kind="convolution")
    assert reloaded(layer, MAX_LEN + 1, kind="convolution").projection.weight.shape == (2, 14)
    with pytest.raises(
        CheckpointError, match=r"has the shape \(2, 14\) .*only `--linformer-max-len`"
    ):
        reloaded(layer, 140, kind="convolution")


def test_mean_pool_has_nothing_to_load() -> None:
    layer = attention(kind="mean-pool")
    assert "projection.weight" not in layer.state_dict()
    other = reloaded(layer, 128, kind="mean-pool")
    assert other.projection(128)[0, 0].eq(1 / 26).sum() == 26


@pytest.mark.parametrize("options", [{"slots": 6}, {"shared": True}, {"kind": "convolution"}])
def test_checkpoint_of_other_sizes_is_refused_by_name(options: dict) -> None:
    with pytest.raises(CheckpointError, match=r"`projection\.weight` has the shape \(2, 5, 67\)"):
        attention(**options).load_state_dict(attention().state_dict())
