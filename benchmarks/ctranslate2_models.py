"""Write models for comparisons: fairseq checkpoints, and models converted to CTranslate2."""

import copy
import random
from pathlib import Path

from ctranslate2.converters.converter import Converter
from ctranslate2.converters.fairseq import set_transformer_decoder, set_transformer_encoder
from ctranslate2.specs.common_spec import Activation
from ctranslate2.specs.transformer_spec import TransformerSpec
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf
from peers import Side

from fairseq_ext.checkpoints import storage
from fairseq_ext.checkpoints.layout import before_training

LANGUAGES = ("--source-lang", "src", "--target-lang", "tgt")


def random_sentences(count: int, words: int, vocabulary: int) -> list[list[int]]:
    """Draw ``count`` sentences of ``words`` words, which are numbers below ``vocabulary``."""
    draw = random.Random(1)
    return [[draw.randrange(vocabulary) for _ in range(words)] for _ in range(count)]


def save_checkpoint(side: Side, path: Path) -> None:
    """Save a model as a checkpoint of fairseq, with its dictionaries beside it."""
    cfg = OmegaConf.to_container(side.cfg, resolve=True, enum_to_str=True)
    storage.save({**before_training(), "cfg": cfg, "model": side.model.state_dict()}, path)
    for language in ("src", "tgt"):
        side.task.source_dictionary.save(str(path.with_name(f"dict.{language}.txt")))


class _InMemory(Converter):
    """A converter from fairseq to CTranslate2 that takes a model in memory, not a checkpoint."""

    def __init__(self, model: TransformerModel, task: TranslationTask) -> None:
        self.model, self.task = copy.deepcopy(model), task  # because its arrays are overwritten

    def _load(self) -> TransformerSpec:
        model = self.model.eval().requires_grad_(False)
        layers = (len(model.encoder.layers), len(model.decoder.layers))
        heads = model.encoder.layers[0].self_attn.num_heads
        pre_norm = model.encoder.layer_norm is not None
        spec = TransformerSpec.from_config(
            layers,
            heads,
            pre_norm=pre_norm,
            activation=Activation[model.decoder.cfg.activation_fn.upper()],
            layernorm_embedding=model.encoder.layernorm_embedding is not None,
        )
        set_transformer_encoder(spec.encoder, model.encoder)
        set_transformer_decoder(spec.decoder, model.decoder)
        spec.register_source_vocabulary(_symbols(self.task.source_dictionary))
        spec.register_target_vocabulary(_symbols(self.task.target_dictionary))
        spec.config.decoder_start_token = spec.config.eos_token
        spec.config.add_source_eos = True
        return spec


def convert(model: TransformerModel, task: TranslationTask, folder: Path, kind: str) -> str:
    """Write a CTranslate2 model with weights of type ``kind``, such as int8; return its folder."""
    return _InMemory(model, task).convert(str(folder), quantization=kind, force=True)


def _symbols(words: Dictionary) -> list[str]:
    return ["<blank>" if symbol == "<pad>" else symbol for symbol in words.symbols]
