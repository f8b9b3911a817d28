"""The numbers that the MUSE paper and its authors' runs fix, and the meaning of the options."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_ext.engine.search_options import Rules
from fairseq_ext.utils.errors import ConfigError
from tests.support import models
from tests.support.engine import as_found, assert_same, worker_of

DE_EN = {"size": 8848, "target_size": 6632}  # dictionaries of the authors' log
DEAD_NORM = 2 * 384 * 12  # their decoder's unused layer norms, which their counts include


@pytest.mark.parametrize(
    ("arch", "dictionaries", "expected"),
    [
        ("muse_iwslt_de_en", DE_EN, 48_193_584 - DEAD_NORM),
        ("muse_iwslt_en_vi", DE_EN, 48_193_584 - DEAD_NORM),
        ("muse_base", DE_EN, 48_184_368),
        ("muse_simple_base", DE_EN, 43_991_040 - DEAD_NORM),
        ("muse_wmt_en_fr", {"size": 44_512}, 252_088_368 - 2 * DEAD_NORM),
        ("muse_wmt_en_de", {"size": 32_768}, 243_068_976 - 2 * DEAD_NORM),
    ],
)
def test_parameters_of_the_authors_runs(arch: str, dictionaries: dict, expected: int) -> None:
    with torch.device("meta"):
        model, _ = models.build(["--arch", arch], **dictionaries)
    assert models.count(model) == expected


def test_parameters_of_a_layer_by_option() -> None:
    """C = 32, H = 2: counts written out from the equations, of one encoder layer."""
    dim, ffn, heads = 32, 48, 2
    simple = 3 * dim**2 + 3 * dim + dim**2 + dim + 2 * dim * ffn + ffn + dim + 2 * dim
    convolution = {
        ("none",): 0,
        ("3,15",): dim**2 + heads * 18 * dim + 2,
        ("31",): dim**2 + heads * 31 * dim,
        ("7", "--muse-separate-projection"): dim**2 + heads * 7 * dim + dim**2 + dim,
        ("5", "--muse-convolution", "ordinary"): 5 * dim**2 + dim,
    }
    for (kernels, *flags), expected in convolution.items():
        model, _ = models.build([*models.MUSE, "--muse-kernels", kernels, *flags])
        assert models.count(model.encoder.layers[0]) == simple + expected


def test_dropout_of_the_tasks() -> None:
    for arch, dropout, attention, read in [
        ("muse_iwslt_de_en", 0.4, 0.0, 0.0),
        ("muse_iwslt_en_vi", 0.3, 0.0, 0.0),
        ("muse_wmt_en_de", 0.3, 0.1, 0.1),
        ("muse_wmt_en_fr", 0.1, 0.1, 0.1),
    ]:
        cfg = models.configuration(["--arch", arch]).model
        assert (cfg.dropout, cfg.attention_dropout, cfg.input_dropout) == (dropout, attention, read)
        assert cfg.weight_dropout == 0.1
        assert cfg.share_all_embeddings == (arch.startswith("muse_wmt"))


def test_dropout_flags_reach_their_modules() -> None:
    flags = {"dropout": 0.11, "input-dropout": 0.12, "attention-dropout": 0.13}
    flags |= {"activation-dropout": 0.14, "weight-dropout": 0.15}
    words = [word for name, p in flags.items() for word in (f"--{name}", str(p))]
    model, _ = models.build([*models.MUSE, *words])
    for layer in (*model.encoder.layers, *model.decoder.layers):
        assert layer.dropout.p == 0.11
        assert layer.input_dropout.p == 0.12
        assert layer.attention.dropout.p == 0.13
        assert layer.activation_dropout.p == 0.14
        assert layer.attention.convolution.dropout.p == 0.15
    assert model.decoder.layers[0].cross.dropout.p == 0.13


@pytest.mark.parametrize(
    ("kernels", "layers", "expected"),
    [
        ("none", 2, [(), ()]),
        ("7", 3, [(7,)] * 3),
        ("3,15", 2, [(3, 15), (3, 15)]),
        ("3/7/15/31", 12, [(3,)] * 3 + [(7,)] * 3 + [(15,)] * 3 + [(31,)] * 3),
        ("3/5,9", 3, [(3,), (3,), (5, 9)]),
    ],
)
def test_kernels_of_each_layer(kernels: str, layers: int, expected: list) -> None:
    count = ["--encoder-layers", str(layers), "--decoder-layers", str(layers)]
    model, _ = models.build([*models.MUSE, *count, "--muse-kernels", kernels])
    for side in (model.encoder, model.decoder):
        convolutions = [layer.attention.convolution for layer in side.layers]
        assert [c.kernel_sizes if c is not None else () for c in convolutions] == expected
        assert all(c is None or c.causal == (side is model.decoder) for c in convolutions)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--muse-kernels", "3,0"], r"`--muse-kernels` must be .none., or sizes.*`3,0` instead"),
        (["--muse-kernels", "three"], r"`three` instead"),
        (["--muse-kernels", ""], r"`` instead"),
        (["--muse-kernels", "3/5/7"], r"at most one group for each of 2 layers.*has 3"),
        (
            ["--muse-kernels", "3,5", "--muse-convolution", "ordinary"],
            r"one size for each layer with `--muse-convolution ordinary`.*`3,5` instead",
        ),
        (["--encoder-attention-heads", "5"], r"`--encoder-attention-heads` must divide.*5 instead"),
    ],
)
def test_refuses_by_option_name(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.build([*models.MUSE, *flags])


def test_encoder_may_have_another_width_than_the_decoder() -> None:
    model, _ = models.build(
        [*models.MUSE, "--encoder-embed-dim", "24", "--encoder-attention-heads", "3"]
    )
    assert model(**models.batch()["net_input"])[0].isfinite().all()


def test_fused_model_prepared_for_generation_finds_the_same() -> None:
    """With packed weights, and in the engine."""
    model, task = models.build([*models.MUSE, "--muse-fused"], seed=6)
    sentences = models.random_sentences([9, 2, 6], seed=7)
    source = models.padded(sentences, left=True)
    target = models.padded(sentences, left=False)
    assert [*models.learning(model, source, target, 0.005)][-1] < 1
    model.eval()
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=5, max_len_b=20)
    expected = generator.generate([model], models.sample_of(sentences))
    model.make_generation_fast_(need_attn=False)
    assert model.decoder._output is not None
    translations = generator.generate([model], models.sample_of(sentences))
    assert_same([*map(as_found, translations)], [*map(as_found, expected)])
    engine = worker_of(model, task).translate(sentences, Rules(beam=5, max_len_b=20))
    assert_same(engine, [*map(as_found, expected)])


def test_fused_model_prepared_for_generation_takes_other_weights() -> None:
    prepared, _ = models.build([*models.MUSE, "--muse-fused"], seed=1)
    other, _ = models.build([*models.MUSE, "--muse-fused"], seed=2)
    prepared.eval()
    other.eval()
    prepared.make_generation_fast_(need_attn=False)
    prepared.load_state_dict(other.state_dict())
    inputs = models.batch()["net_input"]
    with torch.no_grad():
        torch.testing.assert_close(prepared(**inputs)[0], other(**inputs)[0])


def test_keys_of_a_sentence_are_made_once_for_its_beam() -> None:
    model, task = models.build(models.MUSE)
    sizes = []
    layer = model.decoder.layers[0]
    layer.cross_key_value.register_forward_hook(lambda m, i, o: sizes.append(o.shape))
    generator = SequenceGenerator(
        [model], task.target_dictionary, beam_size=5, max_len_a=0, max_len_b=6
    )
    generator.generate([model], models.sample_of(models.random_sentences([9, 4])))
    assert sizes == [(9, 2, 64)]


def test_alignment_of_a_chosen_layer_and_of_fewer_heads() -> None:
    model, _ = models.build(models.MUSE)
    words = models.batch()["net_input"]
    target = words.pop("prev_output_tokens")
    encoded = model.encoder(**words)
    calls = []
    for options in ({}, {"alignment_layer": 0}, {"alignment_heads": 1}):
        full = model.decoder.extract_features(target, encoded, **options)[1]["attn"][0]
        step = model.decoder.extract_features(target[:, :1], encoded, {}, **options)[1]["attn"][0]
        torch.testing.assert_close(step[:, 0], full[:, 0])
        calls.append(full)
    assert not calls[0].allclose(calls[1])
    assert not calls[0].allclose(calls[2])


@pytest.mark.parametrize("flags", [[], ["--muse-convolution", "ordinary", "--muse-kernels", "3"]])
def test_recomputed_activations_give_the_same_gradients(flags: list[str]) -> None:
    gradients = []
    for extra_flags in ([], ["--checkpoint-activations"]):
        model, _ = models.build([*models.MUSE, *flags, *extra_flags])
        model.train()
        model(**models.batch()["net_input"])[0].square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)
