"""Repair diverse beam search, and choose the tokenizer for validation BLEU by target language.

fairseq scores every language with sacrebleu's tokenizer ``13a``, which takes a Japanese or Chinese
sentence for one word: BLEU is always 0, and ``--best-checkpoint-metric bleu`` keeps an arbitrary
checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fairseq_ext.plugin.table import Patch, around


@around("fairseq.search:DiverseBeamSearch.step")
def count_from_the_first(
    original: Callable,
    self: Any,
    step: int,
    lprobs: Tensor,
    scores: Tensor | None,
    prev_output_tokens: Tensor | None = None,
    original_batch_idxs: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Number the sentences of a batch by rows, in the order in which group overlap is stored."""
    if original_batch_idxs is not None:
        if step == 0:  # the batch still has all its sentences
            self.sentences = original_batch_idxs
        matches = original_batch_idxs.unsqueeze(1).eq(self.sentences)
        original_batch_idxs = matches.int().argmax(1)
    return original(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)


@around("fairseq.tasks.translation:TranslationTask._inference_with_bleu")
def score_by_language(
    original: Callable, self: Any, generator: Any, sample: Any, model: Any
) -> Any:
    """Score with the tokenizer of the task's target language."""
    import sacrebleu

    from fairseq_ext.text.bleu_tokenizers import USUAL, tokenizer_for

    tokenizer = tokenizer_for(self.cfg.target_lang)
    if self.cfg.eval_tokenized_bleu or tokenizer == USUAL:
        return original(self, generator, sample, model)
    corpus_bleu = sacrebleu.corpus_bleu  # fairseq looks this name up in each call
    sacrebleu.corpus_bleu = functools.partial(corpus_bleu, tokenize=tokenizer)
    try:
        return original(self, generator, sample, model)
    finally:
        sacrebleu.corpus_bleu = corpus_bleu


PATCHES = (
    Patch(
        name="diverse beam search",
        reason="fairseq-generate --diverse-beam-groups ends in an IndexError: sentences are "
        "numbered as in the data, but the overlap of their groups is stored by row of the batch",
        layers=(count_from_the_first,),
    ),
    Patch(
        "validation-bleu",
        "--eval-bleu is 0 for Chinese and Japanese, whose sentences it takes for single words",
        (score_by_language,),
    ),
)
