"""Write fairseq's Transformer as a model of CTranslate2, with that library's own writer."""

from __future__ import annotations

from pathlib import Path

from fairseq.data import Dictionary

from fairseq_ext.model.stock import StockTransformer
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import ConfigError

TOOL = "CTranslate2"


def write(stock: StockTransformer, folder: Path) -> None:
    """Write ``model.bin`` and the files beside it.

    Args:
        stock: the model.
        folder: an empty folder.

    Raises:
        EnvironmentProblem: the library is not installed.
        ConfigError: encoder and decoder have different numbers of heads.
    """
    extras.need("ctranslate2")
    from ctranslate2.converters.fairseq import set_transformer_decoder, set_transformer_encoder
    from ctranslate2.specs import common_spec, transformer_spec

    if stock.heads[0] != stock.heads[1]:
        raise ConfigError(
            f"{TOOL} has as many heads in the encoder as in the decoder, but these have "
            f"{stock.heads[0]} and {stock.heads[1]}."
        )
    activations = {"relu": common_spec.Activation.RELU, "gelu": common_spec.Activation.GELU}
    encoder, decoder = stock.model.encoder, stock.model.decoder
    spec = transformer_spec.TransformerSpec.from_config(
        (len(encoder.layers), len(decoder.layers)),
        stock.heads[0],
        pre_norm=stock.pre_norm,
        activation=activations[stock.activation],
        layernorm_embedding=stock.normalizes_embeddings,
    )
    set_transformer_encoder(spec.encoder, encoder)
    set_transformer_decoder(spec.decoder, decoder)
    spec.register_source_vocabulary(_symbols(stock.source))
    spec.register_target_vocabulary(_symbols(stock.target))
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def _symbols(dictionary: Dictionary) -> list[str]:
    """Return the symbols in order, with the library's own name for the padding."""
    return ["<blank>" if symbol == "<pad>" else symbol for symbol in dictionary.symbols]
