"""Files of the systems that benchmarks/packed.py compares: random weights, one size for all."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import ctranslate2
import numpy as np
import packed_open
import torch
from ctranslate2.converters.converter import Converter
from ctranslate2.converters.fairseq import set_transformer_decoder, set_transformer_encoder
from ctranslate2.specs.transformer_spec import TransformerSpec
from fairseq.data import Dictionary
from omegaconf import OmegaConf
from packed_open import BMT_1, BMT_6, CTRANSLATE2, FILES, FP32, INT8_OUTPUT, PACKED, PLAIN
from peers import FIRST_WORD, Side, Size

from fairseq_ext.binary.packed import model_file, pack, unpack
from fairseq_ext.checkpoints import storage
from fairseq_ext.checkpoints.layout import before_training

LONGEST = 256
LANGUAGES = ("--source-lang", "src", "--target-lang", "tgt")
PRE_NORM = ("--encoder-normalize-before", "--decoder-normalize-before")
PRESETS = {BMT_1: "bmt-1", BMT_6: "bmt-6"}
LAST = "dict.tgt.txt"  # the file that is written last
DTYPE = "bf16"  # of embeddings and norms in packed files


def write(folder: Path, size: Size) -> None:
    """Everything that ``packed_open.FILES`` names, and the dictionaries.

    Checkpoints are unpacked from packed models, so that both compute the same.
    """
    for title, preset in PRESETS.items():
        flags = ["--arch", "bmt_wmt_de_en", "--bmt-preset", preset, *LANGUAGES]
        side = Side(flags, size, positions=LONGEST)
        for kind in (PACKED, INT8_OUTPUT):
            packed = pack.pack(
                side.model, side.cfg, side.task, dtype=DTYPE, int8_embeddings=kind == INT8_OUTPUT
            )
            model_file.write(packed, folder / FILES[f"{title} {kind}"])
        source = folder / FILES[f"{title} {PACKED}"]
        unpack.unpack_file(source, folder / FILES[f"{title} {FP32}"])
    side = Side(["--arch", "transformer", *PRE_NORM, *LANGUAGES], size, positions=LONGEST)
    save_checkpoint(side, folder / FILES[f"{PLAIN}, {FP32}"])
    InMemory(side).convert(str(folder / FILES[CTRANSLATE2]), quantization="int8", force=True)
    for language in ("src", "tgt"):
        side.task.source_dictionary.save(str(folder / f"dict.{language}.txt"))


def save_checkpoint(side: Side, path: Path) -> None:
    """Save a checkpoint as fairseq's trainer writes it."""
    cfg = OmegaConf.to_container(side.cfg, resolve=True, enum_to_str=True)
    storage.save({**before_training(), "cfg": cfg, "model": side.model.state_dict()}, path)


class InMemory(Converter):
    """CTranslate2's converter of fairseq models, for a model in memory.

    Args:
        side: has ``model`` and ``task``.
    """

    def __init__(self, side: Side | Namespace) -> None:
        self.side = side

    def _load(self) -> TransformerSpec:
        model, words = self.side.model.eval().requires_grad_(False), self.side.task
        layers = (len(model.encoder.layers), len(model.decoder.layers))
        heads = model.encoder.layers[0].self_attn.num_heads
        pre_norm = model.encoder.layer_norm is not None
        spec = TransformerSpec.from_config(layers, heads, pre_norm=pre_norm)
        set_transformer_encoder(spec.encoder, model.encoder)
        set_transformer_decoder(spec.decoder, model.decoder)
        spec.register_source_vocabulary(_symbols(words.source_dictionary))
        spec.register_target_vocabulary(_symbols(words.target_dictionary))
        spec.config.decoder_start_token = spec.config.eos_token
        spec.config.add_source_eos = True
        return spec


def _symbols(words: Dictionary) -> list[str]:
    return ["<blank>" if symbol == "<pad>" else symbol for symbol in words.symbols]


def distance(folder: Path, size: Size, words: int) -> float:
    """Measure how far CTranslate2's log-probabilities of a target are from fairseq's, in nats.

    The mean over the words of four random sentence pairs; int8 explains a few hundredths.
    """
    count = size.vocabulary - FIRST_WORD
    source, target = (packed_open.random_sentences(4, words, count, seed) for seed in (3, 4))
    texts = [[[f"w{word}" for word in sentence] for sentence in side] for side in (source, target)]
    translator = ctranslate2.Translator(str(folder / FILES[CTRANSLATE2]), compute_type="int8")
    found = [score.log_probs[:words] for score in translator.score_batch(*texts)]
    side = Side(["--arch", "transformer", *PRE_NORM, *LANGUAGES], size, positions=LONGEST)
    checkpoint = torch.load(folder / FILES[f"{PLAIN}, {FP32}"], weights_only=True)
    side.model.load_state_dict(checkpoint["model"])
    end = torch.full((4, 1), side.task.target_dictionary.eos())
    source, target = (torch.tensor(sentences).add(FIRST_WORD) for sentences in (source, target))
    with torch.no_grad():
        outputs = side.model.eval()(
            torch.cat([source, end], 1), torch.full((4,), words + 1), torch.cat([end, target], 1)
        )
        expected = side.model.get_normalized_probs(outputs, log_probs=True)[:, :-1]
    expected = expected.gather(2, target.unsqueeze(2)).squeeze(2).numpy()
    return float(np.abs(np.array(found) - expected).mean())
