"""Laws that every architecture keeps, whatever its mathematics."""

from pathlib import Path

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment as AlignmentLoss,
)
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from fairseq_ext.utils.errors import ConfigError
from tests.support.models import (
    ARCHITECTURES,
    UNDER_LAW,
    batch,
    build,
    configuration,
    learning,
    net_input,
    padded,
    previous,
    random_sentences,
    sample_of,
)

pytestmark = pytest.mark.parametrize("name", ARCHITECTURES)

SOURCE = random_sentences([7, 3, 1, 5])  # unsorted, one of them only </s>
TARGET = random_sentences([4, 6, 3, 2], seed=4)
SOURCE_ROWS, TARGET_ROWS = padded(SOURCE, left=True), padded(TARGET, left=False)


def logits(model, source: Tensor = SOURCE_ROWS, target: Tensor = TARGET_ROWS) -> Tensor:
    return model(**net_input(source, target))[0]


def both_outputs(model) -> tuple[Tensor, Tensor]:
    """The encoder's output, and the logits."""
    encoded = model.encoder(SOURCE_ROWS, SOURCE_ROWS.ne(1).sum(1))
    return encoded["encoder_out"][0], model.decoder(previous(TARGET_ROWS), encoder_out=encoded)[0]


@pytest.fixture
def model(name: str):
    return build(ARCHITECTURES[name])[0].double()


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_result_depends_on_neither_padding_nor_batch_mates(name, dtype, atol) -> None:
    compare_alone_with_batch(build(ARCHITECTURES[name])[0].to(dtype), atol)


def compare_alone_with_batch(model, atol: float) -> None:
    alone = [
        logits(model, padded([s], left=True), padded([t], left=False))[0]
        for s, t in zip(SOURCE, TARGET, strict=True)
    ]
    for left in (True, False):
        for extra in (0, 9):
            together = logits(
                model, padded(SOURCE, left=left, extra=extra), padded(TARGET, left=False, extra=1)
            )
            for row, single in zip(together, alone, strict=True):
                torch.testing.assert_close(row[: len(single)], single, rtol=0, atol=atol)


@pytest.mark.parametrize("left", [True, False])
def test_attention_indexes_the_columns_of_the_source(model, name: str, left: bool) -> None:
    source = padded(SOURCE, left=left, extra=2)
    target = previous(padded(TARGET, left=False))
    attention = model(source, source.ne(1).sum(1), target)[1]["attn"][0]
    if getattr(model, "no_alignment", None):
        assert attention is None
        return
    assert attention.shape == (4, target.size(1), source.size(1))
    pads = source.eq(1).unsqueeze(1).expand_as(attention)
    assert attention[pads].eq(0).all()
    torch.testing.assert_close(attention.sum(-1), torch.ones(4, target.size(1)).double())
    alone = model(padded(SOURCE[1:2], left=True), torch.tensor([3]), target[1:2])[1]["attn"][0]
    real = attention[1][:, source[1].ne(1)]
    torch.testing.assert_close(real, alone[0], rtol=0, atol=1e-12)


def test_future_words_change_nothing_earlier(model, name: str) -> None:
    source, target = padded(SOURCE, left=True), previous(padded(TARGET, left=False))
    before = model(source, source.ne(1).sum(1), target)[0]
    changed = target.clone()
    changed[:, 3:] = torch.where(target[:, 3:] == 5, 6, 5)
    after = model(source, source.ne(1).sum(1), changed)[0]
    assert after[:, :3].equal(before[:, :3])
    assert (after[:, 3:] - before[:, 3:]).abs().max() > 1e-6


def test_a_source_of_pads_only_is_finite_and_changes_no_other(model, name: str) -> None:
    """Values and gradients, in training and step by step in inference."""
    source, target = padded([*SOURCE, [1]], left=True), padded([*TARGET, [9, 2]], left=False)
    outputs, gradients = {}, {}
    for sentences in (4, 5):
        model.zero_grad()
        outputs[sentences] = logits(model, source[:sentences], target[:sentences])
        outputs[sentences][:4].square().sum().backward()
        gradients[sentences] = [parameter.grad.clone() for parameter in model.parameters()]
    assert outputs[5].isfinite().all()
    wide = torch.ones(4, 30, dtype=torch.long)  # nothing but pads, more than a Linformer reads
    assert logits(model, wide, target[:4]).isfinite().all()
    torch.testing.assert_close(outputs[5][:4], outputs[4], rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients[5], gradients[4], rtol=1e-9, atol=1e-9)
    model.train()
    model.zero_grad()
    logits(model, source, target).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

    model.eval()
    model.prepare_for_inference_(configuration(ARCHITECTURES[name]))
    tokens, real, state = previous(target), target[:4].ne(1), {}
    with torch.no_grad():
        encoded = model.encoder(source, src_lengths=source.ne(1).sum(1))
        for t in range(tokens.size(1)):
            step, _ = model.decoder(tokens[:, : t + 1], encoded, incremental_state=state)
            assert step.isfinite().all()
            actual, other = step[:4, 0][real[:, t]], outputs[4][:, t][real[:, t]]
            torch.testing.assert_close(actual, other, rtol=0, atol=UNDER_LAW[name].step_tolerance)


@pytest.mark.parametrize("grad", [False, True])
def test_incremental_equals_full(model, name: str, grad: bool) -> None:
    law = UNDER_LAW[name]
    with torch.set_grad_enabled(grad):
        compare_steps_with_full(model, law.step_tolerance, law.attention_tolerance)


def compare_steps_with_full(model, atol: float, attention_atol: float, device: str = "cpu") -> None:
    source = SOURCE_ROWS.to(device)
    target = previous(padded(random_sentences([6] * 4, seed=5), left=False)).to(device)
    full, extra = model(source, source.ne(1).sum(1), target)
    encoded = model.encoder(source, src_lengths=source.ne(1).sum(1))
    state: dict = {}
    for t in range(target.size(1)):
        step, step_extra = model.decoder(target[:, : t + 1], encoded, incremental_state=state)
        assert step.shape[:2] == (4, 1)
        torch.testing.assert_close(step[:, 0], full[:, t], rtol=0, atol=atol)
        attention = step_extra["attn"][0]
        if attention is None:
            assert model.no_alignment
            continue
        expected = extra["attn"][0][:, t]
        torch.testing.assert_close(attention[:, 0], expected, rtol=0, atol=attention_atol)


@pytest.mark.parametrize(
    "orders",
    [
        [[1, 0, 1, 2, 3, 5, 5, 4, 6]],  # uneven groups of rows
        [[1, 1, 0, 3, 4, 5, 8, 7, 6], [3, 4, 5, 6, 8, 7]],  # within sentences, then one is done
        [[8, 7, 6, 0, 1, 2], [0, 3, 1, 4]],  # sentences change places, then rows mix
    ],
)
@torch.no_grad()
def test_reordering_rows_follows_beam_search(model, name: str, orders: list[list[int]]) -> None:
    """State after reorderings equals that of decoding each row's own prefix from the start."""
    beam, sources = 3, [0, 0, 0, 1, 1, 1, 2, 2, 2]
    source = padded(SOURCE[:3], left=True)
    encoded = model.encoder(source, src_lengths=source.ne(1).sum(1))
    encoded = model.encoder.reorder_encoder_out(encoded, torch.arange(3).repeat_interleave(beam))
    tokens = torch.full((9, 1), 2)
    state: dict = {}
    generator = torch.Generator().manual_seed(0)
    for order in [None, *orders]:
        if order is not None:
            index = torch.tensor(order)
            model.decoder.reorder_incremental_state_scripting(state, index)
            encoded = model.encoder.reorder_encoder_out(encoded, index)
            sources = [sources[i] for i in order]
            words = torch.randint(4, 30, (len(order), 1), generator=generator)
            tokens = torch.cat([tokens[index], words], dim=1)
        step, _ = model.decoder(tokens, encoded, incremental_state=state)
        rows = padded([SOURCE[i] for i in sources], left=True)
        full = model(rows, rows.ne(1).sum(1), tokens)[0]
        atol = UNDER_LAW[name].step_tolerance
        torch.testing.assert_close(step[:, 0], full[:, -1], rtol=0, atol=atol)


def test_beam_search_in_a_batch_equals_one_by_one(name: str) -> None:
    """Sentences of very different lengths, so that some finish early."""
    model, task = build(ARCHITECTURES[name], seed=6)
    model = model.double()
    for parameter in model.parameters():  # sharper than at initialization: hypotheses end
        parameter.data *= 2
    options = {"beam_size": 4, "max_len_a": 0, "max_len_b": 9}
    generator = SequenceGenerator([model], task.target_dictionary, **options)
    sentences = random_sentences([9, 2, 6, 1], seed=7)

    # The limit of the length must not be moved by batch mates, so it has no part of the source's.
    together = generator.generate([model], sample_of(sentences))
    for hypotheses, sentence in zip(together, sentences, strict=True):
        (alone,) = generator.generate([model], sample_of([sentence]))
        for hypothesis, other in zip(hypotheses, alone, strict=True):
            assert hypothesis["tokens"].equal(other["tokens"])
            assert hypothesis["score"].item() == pytest.approx(other["score"].item(), abs=1e-9)


def attentive(name: str):
    """Build the model in fp32, with weights so large that its attention is not uniform."""
    model, _ = build(ARCHITECTURES[name])
    for parameter in model.parameters():
        parameter.data *= UNDER_LAW[name].sharpening
    return model


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, "autocast"])
def test_half_precision_is_finite_and_near(name: str, dtype: torch.dtype | str) -> None:
    model = attentive(name)
    exact = logits(model)
    if dtype == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = logits(model)
    else:
        rounded = logits(model.to(dtype))
        assert rounded.dtype == dtype
    assert rounded.isfinite().all()
    if not UNDER_LAW[name].unsteady:  # within a few roundings, of the size of the logits
        eps = torch.finfo(torch.bfloat16 if dtype == "autocast" else dtype).eps
        limit = 16 * eps * exact.std().item()
        torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=limit)
    rounded.float().square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == (torch.float32 if dtype == "autocast" else dtype)
        assert parameter.grad.isfinite().all()


def test_gradients_flow_to_every_parameter(model, name: str) -> None:
    model.train()
    loss = logits(model).log_softmax(-1)
    loss[..., 5].sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        largest = parameter.grad.abs().max()
        has_none = UNDER_LAW[name].has_no_gradient(parameter_name)
        assert largest < 1e-12 if has_none else largest > 1e-12, (  # NaN is neither
            f"{parameter_name}: `zero_gradients` of `{name}` in tests/support/models.py must name "
            "the parameters without influence on the output, and no others"
        )


def test_the_alignment_loss_of_fairseq_trains_the_attention(model, name: str) -> None:
    """Its gradient by the words' vectors is that of finite differences where no sign is taken."""
    if getattr(model, "no_alignment", None):
        pytest.skip("refused for it, see test_no_alignment_loss_of_a_linformer")
    source, target = SOURCE_ROWS, TARGET_ROWS
    columns, rows = source.size(1), target.size(1)
    aligned = torch.tensor([[0, 1], [2, 0], [columns - 2, rows + 4], [columns - 1, 3 * rows]])
    sample = {"net_input": net_input(source, target), "alignments": aligned}
    sample["align_weights"] = torch.tensor([1.0, 0.5, 1.0, 1.0])
    criterion = AlignmentLoss(TranslationTask(TranslationConfig(), None, None), False, 0.1, 1.0)

    def alignment() -> Tensor:
        torch.manual_seed(0)  # the same dropout
        return criterion.compute_alignment_loss(sample, model(**sample["net_input"]))  # in fp32

    model.train()
    embedding = model.encoder.embed_tokens.weight
    (gradient,) = torch.autograd.grad(alignment(), embedding)
    assert gradient.abs().max() > 1e-6
    if UNDER_LAW[name].unsteady:
        return
    step = 1e-4 * torch.randn(embedding.shape, generator=torch.manual_seed(0)).double()
    step[1] = 0  # pads
    values = []
    for sign in (1, -2):
        embedding.data += sign * step
        values.append(alignment().item())
    assert (values[0] - values[1]) / 2 == pytest.approx((gradient * step).sum().item(), rel=0.01)


def test_generation_returns_attention_only_when_asked(name: str) -> None:
    model, _ = build(ARCHITECTURES[name])
    if type(model.decoder) is TransformerDecoderBase and not getattr(model, "no_alignment", None):
        pytest.skip("fairseq's own decoder always returns it")
    model.make_generation_fast_(need_attn=False)
    assert model(**batch()["net_input"])[1]["attn"] == [None]


def test_shared_embeddings_need_one_dictionary(name: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=r"one dictionary|joined dictionary"):
        build(ARCHITECTURES[name], target_size=40, share_all_embeddings=True)


def test_pad_embedding_stays_zero(model, name: str) -> None:
    logits(model).sum().backward()
    embedding = model.encoder.embed_tokens.weight
    assert embedding[1].eq(0).all()
    if embedding is not getattr(model.decoder.output_projection, "weight", None):
        assert embedding.grad[1].eq(0).all()


def test_saved_and_loaded_gives_the_same(name: str, tmp_path: Path) -> None:
    model, _ = build(ARCHITECTURES[name])
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other, _ = build(ARCHITECTURES[name], seed=99)
    assert not logits(other).equal(logits(model))
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert logits(other).equal(logits(model))


@pytest.mark.parametrize("option", ["dropout", "attention_dropout"])
def test_dropout_drops_in_inference_only_where_it_is_retained(name: str, option: str) -> None:
    if option == "attention_dropout" and not UNDER_LAW[name].attention_dropout:
        pytest.skip("its attention has no dropout")
    model, _ = build(ARCHITECTURES[name], **{option: 0.5})
    generation = configuration(ARCHITECTURES[name])
    model.eval()
    encoded, without = both_outputs(model)
    repeated = both_outputs(model)
    assert repeated[0].equal(encoded)
    assert repeated[1].equal(without)
    generation.generation.retain_dropout = True
    model.prepare_for_inference_(generation)
    for _ in range(2):
        dropped = both_outputs(model)
        assert not dropped[0].equal(encoded)
        assert not dropped[1].equal(without)
        encoded, without = dropped


def test_overfits_one_batch(name: str) -> None:
    model, law = build(ARCHITECTURES[name])[0], UNDER_LAW[name]
    low = 0  # updates in a row
    for loss in learning(model, SOURCE_ROWS, TARGET_ROWS, law.overfitting_rate):
        low = low + 1 if loss < law.overfitted_loss else 0
        if low == 5:
            return
    raise AssertionError(loss)
