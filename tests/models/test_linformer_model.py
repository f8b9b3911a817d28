"""The Linformer as fairseq builds it: sizes, sharing, sources, decoding."""

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_ext.linformer.model import SourceAttention, slots_of_layers
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support.harness import fairseq
from tests.support.models import LINFORMER, build, configuration, count, padded, random_sentences
from tests.support.trainings import TRAINING

SOURCE = random_sentences([7, 3, 1, 5])


def parameters(flags: list[str], size: int = 30) -> int:
    """Parameters of a model, built without its memory."""
    with torch.device("meta"):
        model, _ = build(flags, size=size)
    return count(model)


def encode(model, source: Tensor) -> dict[str, list[Tensor]]:
    return model.encoder(source, src_lengths=source.ne(1).sum(1))


def test_decoder_self_attention_is_exact() -> None:
    model, _ = build(LINFORMER)
    assert all(type(layer.self_attn) is MultiheadAttention for layer in model.decoder.layers)


@pytest.mark.parametrize(
    ("sharing", "projection", "extra"),
    [
        ("headwise", "learned", 12 * 2 * 32 * 256),
        ("key-value", "learned", 12 * 32 * 256),
        ("layerwise", "learned", 32 * 256),
        ("headwise", "convolution", 12 * 2 * 8),
        ("headwise", "mean-pool", 0),
    ],
)
def test_parameters_beyond_the_transformer(sharing: str, projection: str, extra: int) -> None:
    options = ["--linformer-sharing", sharing, "--linformer-projection", projection]
    linformer = parameters(["--arch", "linformer", *options])
    assert linformer - parameters(["--arch", "transformer"]) == extra


@pytest.mark.parametrize("name", ["wmt_en_de", "iwslt_de_en"])
def test_named_architectures_are_fairseqs_but_for_the_projections(name: str) -> None:
    linformer, _ = build(["--arch", f"linformer_{name}", "--share-all-embeddings"])
    stock, _ = build(["--arch", f"transformer_{name}", "--share-all-embeddings"])
    shapes = {key: value.shape for key, value in linformer.state_dict().items()}
    ours = {key: shape for key, shape in shapes.items() if "projection.weight" not in key}
    ours["decoder.output_projection.weight"] = shapes["decoder.output_projection.weight"]
    assert ours == {key: value.shape for key, value in stock.state_dict().items()}


@pytest.mark.parametrize(
    ("k", "layers", "slots"),
    [
        ("8", (2, 3), [8] * 5),
        ("8,4", (2, 2), [8, 4, 8, 4]),
        ("8,4,2", (2, 1), [8, 4, 2]),
        ("8,4,2,1", (2, 2), [8, 4, 2, 1]),
    ],
)
def test_slots_of_each_layer(k: str, layers: tuple[int, int], slots: list[int]) -> None:
    flags = ["--encoder-layers", str(layers[0]), "--decoder-layers", str(layers[1])]
    cfg = configuration(["--arch", "linformer", "--linformer-k", k, *flags]).model
    assert slots_of_layers(cfg) == slots


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--linformer-k", "4,x"], "`--linformer-k` must be a number, or a list.*`4,x`"),
        (["--linformer-k", "4,4,4"], r"one for each layer \(encoder 2, decoder 2\), but has 3"),
        (["--linformer-k", "0"], "from 1 to .* but is 0"),
        (["--linformer-k", "23"], r"from 1 to .*\(22\), but is 23"),
        (["--linformer-k", "4,2", "--linformer-sharing", "layerwise"], "one number with"),
        (["--encoder-attention-heads", "3"], r"divide `--encoder-embed-dim` \(32\), but is 3"),
        (["--decoder-embed-dim", "48"], r"must equal `--encoder-embed-dim` \(32\), but is 48"),
    ],
)
def test_bad_options_are_refused_by_name(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build([*LINFORMER, *flags])


def test_encoder_output_is_padded_on_the_right() -> None:
    model, _ = build(LINFORMER)
    left, right = padded(SOURCE, left=True), padded(SOURCE, left=False)
    left_encoded, other = encode(model, left), encode(model, right)
    assert left_encoded["encoder_padding_mask"][0].equal(right.eq(1))
    real = ~left_encoded["encoder_padding_mask"][0].t()
    torch.testing.assert_close(left_encoded["encoder_out"][0][real], other["encoder_out"][0][real])
    from_embeddings = model.encoder(left, token_embeddings=model.encoder.embed_tokens(left))
    torch.testing.assert_close(from_embeddings["encoder_out"], left_encoded["encoder_out"])


def test_pads_beyond_the_projection_are_cut_and_words_are_refused() -> None:
    model, _ = build(LINFORMER)
    assert model.max_positions() == (22, 1024)
    wide = padded(random_sentences([22, 3]), left=True, extra=9)
    assert encode(model, wide)["encoder_out"][0].size(0) == 22
    with pytest.raises(DataError, match=r"23 tokens is longer than `--linformer-max-len` \(22\)"):
        encode(model, padded(random_sentences([23, 3]), left=True))
    model, _ = build([*LINFORMER, "--max-source-positions", "9"])
    assert model.max_positions() == (9, 1024)


@pytest.mark.parametrize("length", [2, 21])
def test_cache_does_not_grow_with_the_source(length: int) -> None:
    model, _ = build(LINFORMER)
    source = padded(random_sentences([length] * 3), left=True)
    encoded = model.encoder.reorder_encoder_out(
        encode(model, source), torch.arange(3).repeat_interleave(5)
    )
    assert encoded["encoder_out"][0].size(1) == 3  # once for each sentence
    state: dict = {}
    model.decoder(torch.full((15, 1), 2), encoded, incremental_state=state)
    attentions = [layer.encoder_attn for layer in model.decoder.layers]
    for attention in attentions:
        keys, values, _ = state[attention]
        assert keys.shape == values.shape == (3, 2, 4, 16)
    first = state[attentions[0]][0]
    order = torch.tensor([1, 1, 0, 4, 2, 11, 10, 10, 14, 13])  # the second sentence is finished
    model.decoder.reorder_incremental_state_scripting(state, order)
    after = state[attentions[0]][0]
    assert after.equal(first[[0, 2]])


def test_source_is_projected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build(LINFORMER)
    encoded = encode(model, padded(SOURCE, left=True))
    calls = []
    compress = SourceAttention.compress
    monkeypatch.setattr(
        SourceAttention, "compress", lambda self, *x: calls.append(self) or compress(self, *x)
    )
    state: dict = {}
    for step in range(1, 4):
        model.decoder(torch.full((4, step), 2), encoded, incremental_state=state)
    assert len(calls) == len(set(calls)) == 2  # one call for each decoder layer


def test_masks_over_positions_are_refused() -> None:
    model, _ = build(LINFORMER)
    x = torch.zeros(3, 1, 32)
    with pytest.raises(ConfigError, match="attn_mask"):
        model.encoder.layers[0].self_attn(x, x, x, attn_mask=torch.zeros(3, 3))


def test_training_goes_on_with_a_larger_max_len(copy_data, tmp_path):
    first, second = (tmp_path / name / "checkpoint_last.pt" for name in ("first", "second"))
    longer = ("--finetune-from-model", first, "--linformer-max-len", 40)
    for path, flags in ((first, ()), (second, longer)):
        fairseq(
            *("train", copy_data, "--save-dir", path.parent, *LINFORMER, *TRAINING, *flags),
            *("--max-update", 2, "--no-epoch-checkpoints"),
        )
    models, cfg = checkpoint_utils.load_model_ensemble(
        [str(second)], arg_overrides={"data": str(copy_data)}
    )
    assert cfg.model.linformer_max_len == 40
    assert models[0].encoder.layers[0].self_attn.projection.weight.shape == (2, 4, 40)
