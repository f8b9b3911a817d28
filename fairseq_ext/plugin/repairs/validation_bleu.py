"""BLEU of validation (``--eval-bleu``) by the target language.

fairseq scores every language with sacrebleu's tokenizer ``13a``, which takes a Japanese or Chinese
sentence for one word: BLEU is 0 throughout, and ``--best-checkpoint-metric bleu`` keeps any
checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fairseq_ext.plugin.table import Layer, Patch, around


@around
def score_by_language(
    original: Callable, self: Any, generator: Any, sample: Any, model: Any
) -> Any:
    """Score with the tokenizer of the task's target language."""
    import sacrebleu

    from fairseq_ext.text.bleu_tokenizers import USUAL, tokenizer_for

    tokenizer = tokenizer_for(self.cfg.target_lang)
    if self.cfg.eval_tokenized_bleu or tokenizer == USUAL:
        return original(self, generator, sample, model)
    corpus_bleu = sacrebleu.corpus_bleu  # which fairseq looks up in each call
    sacrebleu.corpus_bleu = functools.partial(corpus_bleu, tokenize=tokenizer)
    try:
        return original(self, generator, sample, model)
    finally:
        sacrebleu.corpus_bleu = corpus_bleu


PATCHES = (
    Patch(
        "validation-bleu",
        "repair",
        "--eval-bleu is 0 for Chinese and Japanese, whose sentences it takes for single words",
        (
            Layer(
                "fairseq.tasks.translation:TranslationTask._inference_with_bleu",
                score_by_language,
            ),
        ),
    ),
)
