"""The numbers that the GRU paper fixes, and the meaning of the options."""

import pytest
import torch

from fairseq_ext.utils.errors import ConfigError
from tests.support.models import build, configuration, count, padded, previous, random_sentences

PAPER_PARAMETERS = 43_564_519  # Saleem & Uprety, section 5


def test_parameters_of_the_paper() -> None:
    """The paper's figure, with dictionaries of its two vocabulary sizes, part by part."""
    with torch.device("meta"):
        model, task = build(["--arch", "gru_europarl_es_en"], size=63_220, target_size=36_838)
    assert (len(task.source_dictionary), len(task.target_dictionary)) == (63_220, 36_838)
    assert count(model) == PAPER_PARAMETERS
    recurrence = model.decoder.recurrence
    encoder, decoder, attention = model.encoder, model.decoder, recurrence.attention
    parts = [encoder.embed_tokens, encoder.gru, encoder.bridge, attention.hidden, attention.score]
    parts += [decoder.embed_tokens, recurrence.gru, decoder.output_projection]
    counts = [6_322_000, 549_888, 131_328, 196_864, 257, 3_683_800, 668_160, 32_012_222]
    assert [*map(count, parts)] == counts


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (["--attention-type", "general"], 32 * 64 - (96 * 32 + 32 + 33)),
        # GRU reads 32 fed values instead of 64; W_c [96 -> 32]; output reads 32, not 128.
        (["--decoder-order", "luong"], -96 * 32 + (96 * 32 + 32) - 30 * (128 - 32)),
    ],
)
def test_parameters_by_option(flags: list[str], difference: int) -> None:
    plain = count(build(["--arch", "gru_tiny"])[0])
    assert count(build(["--arch", "gru_tiny", *flags])[0]) - plain == difference


@pytest.mark.parametrize(
    ("order", "attends_before_it_reads"), [("bahdanau", True), ("luong", False)]
)
def test_order_decides_what_the_attention_has_read(order, attends_before_it_reads):
    """In Bahdanau's order word t-1 cannot move the attention of step t; in Luong's it does."""
    model, _ = build(["--arch", "gru_tiny", "--decoder-order", order])
    source = padded(random_sentences([6, 4]), left=True)
    target = previous(padded(random_sentences([5, 5], seed=8), left=False))
    changed = target.clone()
    changed[:, 2] = torch.where(target[:, 2] == 7, 8, 7)
    lengths = source.ne(1).sum(1)
    before = model(source, lengths, target)[1]["attn"][0]
    after = model(source, lengths, changed)[1]["attn"][0]
    assert after[:, :2].equal(before[:, :2])
    assert after[:, 2].equal(before[:, 2]) == attends_before_it_reads
    assert not after[:, 3].equal(before[:, 3])


def test_without_input_feeding_attention_does_not_reach_the_state() -> None:
    """The state of step 1 must not depend on the source beyond ``s_0``."""
    for feeding in (True, False):
        flags = ["--arch", "gru_tiny"] + ([] if feeding else ["--no-input-feeding"])
        recurrence = build(flags)[0].decoder.recurrence
        words, hidden = torch.randn(3, 2, 32), torch.zeros(2, 32)
        mask = torch.zeros(2, 4, dtype=torch.bool)
        states = [  # features begin with s_t
            recurrence(words, hidden, recurrence.source(torch.randn(2, 4, 64), mask))[0][..., :32]
            for _ in range(2)
        ]
        assert states[0].equal(states[1]) != feeding


def test_dot_refuses_unequal_sizes_by_option_name() -> None:
    with pytest.raises(ConfigError, match=r"(?s)64.*--decoder-hidden-size.*32 instead"):
        build(["--arch", "gru_tiny", "--attention-type", "dot"])


def test_shared_embeddings_are_one_matrix() -> None:
    model, _ = build(["--arch", "gru_tiny", "--share-all-embeddings"])
    table = model.encoder.embed_tokens.weight
    assert model.decoder.embed_tokens.weight is table
    assert model.decoder.output_projection.weight is table
    model, _ = build(["--arch", "gru_tiny", "--share-decoder-input-output-embed"])
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    assert model.encoder.embed_tokens.weight is not model.decoder.embed_tokens.weight


def test_shared_embeddings_refuse_two_sizes() -> None:
    flags = ["--arch", "gru_tiny", "--share-all-embeddings"]
    with pytest.raises(ConfigError, match=r"--decoder-embed-dim.*32.*16 instead"):
        build([*flags, "--decoder-embed-dim", "16"])


def test_options_win_over_architectures_and_those_over_defaults() -> None:
    cfg = configuration(["--arch", "gru_europarl_es_en", "--decoder-embed-dim", "7"]).model
    assert cfg._name == "gru_europarl_es_en"
    assert (cfg.decoder_embed_dim, cfg.encoder_embed_dim) == (7, 100)
    assert (cfg.encoder_hidden_size, cfg.dropout) == (256, 0.0)


def test_longest_sentences_are_the_tasks() -> None:
    flags = ["--max-source-positions", "17", "--max-target-positions", "19"]
    model, _ = build(["--arch", "gru_tiny", *flags])
    assert model.max_positions() == (17, 19)
