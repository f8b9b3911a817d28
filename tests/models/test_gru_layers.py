"""Each layer of the GRU against the reference from the paper's equations, in float64."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from fairseq_ext.gru import recurrence, reference
from fairseq_ext.gru.attention import exponentials, masked_softmax, tanh_of_sum
from fairseq_ext.gru.decoder import AttentiveGRU
from tests.support.gradients import assert_same_function

VARIANTS = [*itertools.product(("mlp", "general", "dot"), ("bahdanau", "luong"), (True, False))]


def build(kind: str, order: str, feeding: bool, embed: int = 5, hidden: int = 6) -> AttentiveGRU:
    torch.manual_seed(0)
    annotation = hidden if kind == "dot" else 2 * hidden - 1
    model = AttentiveGRU(
        *(embed, hidden, annotation, 7), attention_type=kind, order=order, input_feeding=feeding
    )
    return model.double()


def inputs(model: AttentiveGRU, length: int, source: int, batch: int = 3) -> tuple[Tensor, ...]:
    """Random words, states, annotations and a mask with left, right and no padding."""
    torch.manual_seed(1)
    hidden = model.gru.hidden_size
    annotation = model.output_dim - hidden - model.embed_dim
    if model.luong:
        annotation = model.combine.in_features - hidden
    words = torch.randn(length, batch, model.embed_dim, dtype=torch.double, requires_grad=True)
    state = torch.randn(batch, hidden, dtype=torch.double, requires_grad=True)
    annotations = torch.randn(batch, source, annotation, dtype=torch.double, requires_grad=True)
    mask = torch.zeros(batch, source, dtype=torch.bool)
    if source > 1:
        mask[0, : source // 2] = True
        mask[1, source - source // 3 - 1 :] = True
    return words, state, annotations, mask


@pytest.mark.parametrize(("length", "source"), [(1, 1), (2, 3), (9, 7)])
@pytest.mark.parametrize(("kind", "order", "feeding"), VARIANTS)
def test_decoder_equals_the_reference(kind, order, feeding, length, source):
    model = build(kind, order, feeding)
    words, state, annotations, mask = inputs(model, length, source)
    fast, weights = model(words, state, model.source(annotations, mask))
    naive = []
    for b in range(words.size(1)):
        feature, alpha = reference.decode(
            dict(model.named_parameters()), words[:, b], state[b], annotations[b][~mask[b]], feeding
        )
        naive.append(feature)
        torch.testing.assert_close(weights[:, b][:, ~mask[b]], alpha, rtol=0, atol=1e-12)
    variables = [words, state, annotations, *model.parameters()]
    assert_same_function(fast, torch.stack(naive, dim=1), variables)


def test_written_out_backward_against_finite_differences() -> None:
    model = build("mlp", "bahdanau", True, embed=2, hidden=3)
    words, state, annotations, mask = inputs(model, 3, 4, batch=2)

    def function(changed: Tensor) -> Tensor:  # by gradcheck, in place
        return model(words, state, model.source(annotations, mask))[0]

    for tensor in (words, state, annotations, *model.parameters()):
        assert torch.autograd.gradcheck(function, (tensor,))


@pytest.mark.parametrize("scale", [1.0, 29.0, 60.0])
def test_tanh_of_sum_is_a_tanh(scale: float) -> None:
    """Also where an exponential would leave the range of fp32, in keys or in queries."""
    keys = torch.linspace(-scale, scale, 24).view(1, 1, 4, 6)
    taken_apart = exponentials(keys)
    assert (taken_apart is None) == (scale > 30)
    for query in (
        torch.linspace(-3, 3, 6),
        -keys[0, 0, 0],
        torch.tensor([90.0, -90, 45, -45, 0, 1]),
    ):
        expected = torch.tanh(keys.double() + query.double())
        actual = tanh_of_sum(keys, taken_apart, query.view(1, 1, 1, 6))
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-6)
    assert exponentials(keys.half()) is None


def test_update_is_torchs_cell_and_not_the_papers_reset() -> None:
    """The parameter count of the paper decides between the two GRUs (docs/gru.md)."""
    torch.manual_seed(0)
    cell = nn.GRUCell(5, 7).double()
    x, s = torch.randn(4, 5, dtype=torch.double), torch.randn(4, 7, dtype=torch.double)
    input_gates = x @ cell.weight_ih.t() + cell.bias_ih
    hidden_gates = s @ cell.weight_hh.t() + cell.bias_hh
    actual = recurrence.gru_update(input_gates, hidden_gates, s)
    torch.testing.assert_close(actual, cell(x, s), rtol=0, atol=1e-14)
    r = torch.sigmoid(input_gates + hidden_gates)[:, :7]
    z = torch.sigmoid(input_gates + hidden_gates)[:, 7:14]
    printed = torch.tanh(input_gates[:, 14:] + (r * s) @ cell.weight_hh[14:].t())
    assert (actual - ((1 - z) * printed + z * s)).abs().max() > 0.01


def test_masked_softmax_is_exactly_zero_on_pads() -> None:
    scores = torch.tensor([[1.0, 2.0, 50.0], [1.0, 2.0, 3.0]], dtype=torch.float16)
    mask = torch.tensor([[False, False, True], [True, True, True]])
    weights = masked_softmax(scores, mask)
    assert weights.dtype == torch.float16
    assert weights[0, 2] == 0
    assert weights[1].eq(0).all()
    expected = 1 / (1 + math.exp(-1))
    assert weights[0, 1].item() == pytest.approx(expected, abs=1e-3)


def test_encoder_equals_a_loop_over_each_sentence():
    torch.manual_seed(0)
    encoder = recurrence.BidirectionalGRU(5, 6).double()
    for parameter in encoder.gru.parameters():
        nn.init.normal_(parameter)
    embedded = torch.randn(5, 7, 5, dtype=torch.double, requires_grad=True)
    mask = torch.zeros(5, 7, dtype=torch.bool)
    mask[0, :3] = True  # left
    mask[1, 2:] = True  # right, and longer sentences follow: lengths are unsorted
    mask[3, 0] = mask[3, 5:] = True  # both
    mask[4] = True  # nothing but pads
    annotations, final = encoder(embedded, mask)
    assert annotations[mask].eq(0).all()
    assert final[4].eq(0).all()

    parameters, naive, last = dict(encoder.named_parameters()), [], []
    for words in (embedded[b][~mask[b]] for b in range(4)):
        directions = []
        for suffix, ordered in (("", words), ("_reverse", words.flip(0))):
            state, states = torch.zeros(6, dtype=torch.double), []
            for word in ordered:
                state = reference.gru(parameters, word, state, f"gru.{{}}_l0{suffix}")
                states.append(state)
            directions.append(torch.stack(states[::-1] if suffix else states))
            last.append(state)
        naive.append(torch.cat(directions, dim=1).flatten())
    actual = torch.cat([annotations[~mask].flatten(), final[:4].flatten()])
    inputs = [embedded, *parameters.values()]
    assert_same_function(actual, torch.cat([*naive, *last]), inputs, atol=1e-11)


def test_xavier_bound_of_each_gate() -> None:
    """Glorot & Bengio's bound per gate; the stack of three would give a smaller one."""
    torch.manual_seed(0)
    gru = nn.GRU(100, 256)
    recurrence.xavier_uniform_per_gate_(gru)
    for weight, fan_in in ((gru.weight_ih_l0, 100), (gru.weight_hh_l0, 256)):
        bound = math.sqrt(6 / (fan_in + 256))
        for gate in weight.chunk(3):
            assert gate.abs().max() <= bound
            assert gate.abs().max() > 0.99 * bound
            assert gate.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert gru.bias_ih_l0.eq(0).all()
    assert gru.bias_hh_l0.eq(0).all()
