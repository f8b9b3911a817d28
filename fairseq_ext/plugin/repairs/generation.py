"""Repair fairseq's search, alignments, mBART's task, validation BLEU, and shards of a test set.

`fairseq-generate --num-shards N --shard-id I` makes the batches of an unsharded run, and translates
every N-th of them. So the scores are equal.
"""

import contextlib
import functools
import math
import sys
import traceback
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_ext.plugin.patching import around, replaced
from fairseq_ext.utils.errors import ConfigError, wrong_value


@around("fairseq.search:DiverseBeamSearch.step", patch="diverse beam search")
def count_from_the_first(
    original: Callable,
    self: Any,
    step: int,
    lprobs: Tensor,
    scores: Tensor | None,
    prev_output_tokens: Tensor | None = None,
    original_batch_idxs: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Make a step of diverse beam search.

    fairseq's method gets the row that each sentence had in the batch of the first step, in place of
    the sentence's number in the test set.

    Problem: fairseq-generate --diverse-beam-groups ends in an IndexError. fairseq stores the
    overlap of groups under the row of a sentence in the batch, but looks it up under the number of
    the sentence in the test set.
    """
    if original_batch_idxs is not None:
        if step == 0:  # the batch still has all its sentences
            self.sentences = original_batch_idxs
        matches = original_batch_idxs.unsqueeze(1).eq(self.sentences)
        original_batch_idxs = matches.int().argmax(1)
    return original(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)


@around("fairseq.tasks.fairseq_task:FairseqTask.build_generator", patch="repeated n-grams")
def block_repetitions(original: Callable, self: Any, *arguments: Any, **options: Any) -> Any:
    """Build a generator that blocks repeated n-grams by :func:`forbid_repetitions`.

    Problem: --no-repeat-ngram-size has no effect on a CPU, because fairseq compares the padding
    after each hypothesis instead of its last tokens.
    """
    generator = original(self, *arguments, **options)
    blocker = getattr(generator, "repeat_ngram_blocker", None)
    if blocker is not None and not blocker.use_extension:
        blocker.forward = functools.partial(forbid_repetitions, blocker.no_repeat_ngram_size)
    return generator


def forbid_repetitions(size: int, tokens: Tensor, lprobs: Tensor, *sizes: int) -> Tensor:
    """Set to ``-inf`` the log-probability of each token that would repeat an n-gram.

    ``size`` is n. ``tokens`` ``[B, T]`` are ``B`` hypotheses of ``T`` tokens, with start symbol and
    pads. ``lprobs`` ``[B, V]`` are the log-probabilities of the next token among ``V`` symbols; the
    tensor is changed and returned. Of fairseq's three ``sizes`` only the last is used: the number
    of tokens after the start symbol.
    """
    step = sizes[-1]
    words = tokens[:, 1 : step + 1]  # without the start symbol and padding
    newest = words[:, step - size + 1 :]
    for end in range(size - 1, step):
        rows = words[:, end - size + 1 : end].eq(newest).all(1).nonzero().squeeze(1)
        lprobs[rows, words[rows, end]] = -math.inf
    return lprobs


@around("fairseq.models.transformer_align:TransformerAlignModel.__init__", patch="alignment layer")
def align_as_trained(original: Callable, self: Any, encoder: Any, decoder: Any, args: Any) -> None:
    """Build a model that aligns words by the layer and attention heads that learned to align.

    Problem: For a transformer_align, fairseq-generate --print-alignment shows the attention of the
    last layer, not that of --alignment-layer and --alignment-heads.
    """
    original(self, encoder, decoder, args)
    if self.alignment_layer < len(decoder.layers):
        how = {name: getattr(self, name) for name in ("alignment_layer", "alignment_heads")}
        decoder.forward = functools.partial(decoder.forward, **how)  # which the search calls


@around("fairseq.sequence_scorer:SequenceScorer.generate", patch="scores of ensembles")
def score_without_attention(
    original: Callable, self: Any, models: list[Any], sample: Any, **options: Any
) -> Any:
    """Score references; leave out the attention of an ensemble's models if nothing needs it.

    Problem: --score-reference ends in a TypeError if the first model of an ensemble returns its
    attention and another model does not.
    """
    if len(models) == 1 or self.compute_alignment:
        return original(self, models, sample, **options)
    with contextlib.ExitStack() as hooks:
        for model in models:
            hook = model.register_forward_hook(lambda _, inputs, outputs: outputs[:1])
            hooks.enter_context(hook)
        return original(self, models, sample, **options)


MBART = "fairseq.tasks.translation_from_pretrained_bart:TranslationFromPretrainedBARTTask"


@around(f"{MBART}.__init__", patch="task of mBART")
def set_args(original: Callable, self: Any, args: Any, *dictionaries: Any) -> None:
    """Build mBART's task, with its options as the attribute ``args``; require `--langs`.

    Problem: Every command with --task translation_from_pretrained_bart ends in an AttributeError,
    because this task reads its options from an attribute that fairseq has renamed. The generator
    of this task ignores --sampling, --print-alignment and other options.
    """
    if not args.langs:
        raise ConfigError(
            "`--langs` is missing; give the languages of the pretraining in their order, such as "
            "`--langs en_XX,ro_RO`."
        )
    self.args = args
    original(self, args, *dictionaries)


@around(f"{MBART}.build_generator", patch="task of mBART")
def build_as_other_tasks(
    original: Callable, self: Any, models: list[Any], args: Any, **options: Any
) -> Any:
    """Build a generator for mBART's task that reads all options, as in other tasks.

    Translations end with the symbol of the target language, such as ``[ro_RO]``.
    """
    from fairseq.tasks.fairseq_task import FairseqTask

    end = self.tgt_dict.index(f"[{self.args.target_lang}]")
    options["extra_gen_cls_kwargs"] = {**(options.get("extra_gen_cls_kwargs") or {}), "eos": end}
    generator = FairseqTask.build_generator(self, models, args, **options)
    if getattr(args, "score_reference", False):  # the scorer is built without these options
        generator.eos, generator.symbols_to_strip_from_output = end, {end}
    else:
        generator.search.eos = end
    return generator


@around("fairseq.tasks.translation:TranslationTask._inference_with_bleu", patch="validation BLEU")
def bleu_by_language(original: Callable, self: Any, generator: Any, sample: Any, model: Any) -> Any:
    """Compute BLEU with the target language's tokenizer, and without symbols such as ``[ro_RO]``.

    Problem: --eval-bleu is 0 for Chinese and Japanese, because each sentence counts as one word.
    Symbols of languages count as words that are always right. If all translations are empty,
    fairseq logs no BLEU instead of 0.
    """
    import sacrebleu

    from fairseq_ext.text.bleu_tokenizers import USUAL, tokenizer_for

    tokenizer = tokenizer_for(self.cfg.target_lang)
    corpus_bleu, words = sacrebleu.corpus_bleu, copy(self.tgt_dict)
    left_out = generator.symbols_to_strip_from_output
    words.string = functools.partial(self.tgt_dict.string, extra_symbols_to_ignore=left_out)
    if not self.cfg.eval_tokenized_bleu and tokenizer != USUAL:
        corpus_bleu = functools.partial(corpus_bleu, tokenize=tokenizer)
    # fairseq looks both names up in each call
    with replaced(self, "tgt_dict", words), replaced(sacrebleu, "corpus_bleu", corpus_bleu):
        return original(self, generator, sample, model)


@around("fairseq.tasks.translation:TranslationTask.reduce_metrics", patch="validation BLEU")
def count_empty_translations(
    original: Callable, self: Any, logging_outputs: list[dict[str, Any]], criterion: Any
) -> None:
    """Log the metrics of a validation; if no translation has a word, also log a BLEU of 0."""
    lengths = [log["_bleu_sys_len"] for log in logging_outputs if "_bleu_sys_len" in log]
    if lengths and not sum(lengths):
        # fairseq asks whether there are any n-grams; this number does not change a sum of counts
        first, *others = logging_outputs
        logging_outputs = [{**first, "_bleu_totals_0": 1e-30}, *others]
    original(self, logging_outputs, criterion)


@around("fairseq_cli.generate:main", patch="shards of a test set")
def _generate(original: Callable, cfg: Any) -> Any:
    """Translate only the shard `--shard-id`; put its number into the names of the result files.

    Problem: fairseq-generate ignores --num-shards and --shard-id, and translates the full set.
    """
    count, shard = cfg.dataset.num_shards, cfg.dataset.shard_id
    require_shard(count, shard)
    if count == 1:
        return original(cfg)
    distributed = cfg.distributed_training
    if distributed.distributed_world_size > 1:
        raise ConfigError(
            "`--num-shards` and `--distributed-world-size` both split the set; leave one out."
        )
    # fairseq-generate needs no other settings of distributed training
    distributed.distributed_world_size, distributed.distributed_rank = count, shard
    try:
        return original(cfg)
    except ZeroDivisionError as error:
        if traceback.extract_tb(error.__traceback__)[-1].name != "_main":
            raise  # only `_main` divides by the time of an empty shard, 0 seconds
        print(f"shard {shard} of {count} has no sentences", file=sys.stderr)
        return None
    finally:
        if cfg.common_eval.results_path is not None:
            for path in Path(cfg.common_eval.results_path).glob("generate-*.txt"):
                path.replace(path.with_name(f"{path.stem}.{shard}-of-{count}.txt"))


def require_shard(num_shards: int, shard_id: int) -> None:
    """Raise :class:`ConfigError` unless ``--shard-id`` is from 0 to ``--num-shards`` - 1."""
    if not 0 <= shard_id < num_shards:
        wish = f"at least 0 and less than `--num-shards` ({num_shards})"
        raise wrong_value("--shard-id", wish, shard_id)
