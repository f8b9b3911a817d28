"""The engine with the interface of fairseq's scorer: for ``--score-reference``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.models import BaseFairseqModel
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor

from fairseq_ext.engine.library import Found
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.generation.on_engine.batches import Native, words


class NativeScorer(Native):
    """Scores the targets of fairseq's batches: a search that may go only one way.

    Args:
        scorer: its options are taken, and it scores targets that do not end with the only ``</s>``.
        others: as :class:`Native`.
    """

    instead = "fairseq's scorer scores"

    def __init__(self, scorer: SequenceScorer, *arguments: Any) -> None:
        super().__init__(scorer, *arguments)
        self._align = scorer.compute_alignment

    def generate(
        self, models: Sequence[BaseFairseqModel], sample: dict[str, Any], **unused: Any
    ) -> list[list[dict[str, Tensor | None]]]:
        """As :meth:`SequenceScorer.generate`: one hypothesis of each sentence, its target."""
        targets = words(sample["target"], self._program.symbols.pad)
        if "start_indices" in sample or not self._usual(targets, sample["net_input"]):
            self._leave("a target is no whole sentence that `</s>` ends, or is too long.")
            return self._fallback.generate(models, sample)
        sources = sample["net_input"]["src_tokens"]
        rules = Rules(beam=1, max_len_b=max(map(len, targets)), attention=True, listed=False)
        candidates = self._translate(sources, rules, targets)
        return [
            [self._hypothesis(candidate, row)]
            for row, (candidate,) in zip(sources, candidates, strict=True)
        ]

    def _usual(self, targets: list[list[int]], net_input: dict[str, Tensor]) -> bool:
        """Whether the start symbol precedes each target, and its only ``</s>`` ends it."""
        symbols, longest = self._program.symbols, self._program.longest_target
        before = words(net_input["prev_output_tokens"], symbols.pad)
        return all(
            len(target) <= longest
            and symbols.end in target
            and target.index(symbols.end) == len(target) - 1
            and fed == [symbols.begin, *target[:-1]]
            for target, fed in zip(targets, before, strict=True)
        )

    def _hypothesis(self, candidate: Found, source: Tensor) -> dict[str, Tensor | None]:
        """One of fairseq's hypotheses; ``source`` ``[S]`` with its pads."""
        symbols, tokens = self._program.symbols, torch.from_numpy(candidate.tokens)
        attention, alignment = self._attention(candidate, source), None
        if attention is not None and self._align:
            ends = symbols.pad, symbols.end
            alignment = utils.extract_hard_alignment(attention, source, tokens, *ends)
        return {
            "tokens": tokens,
            "score": torch.tensor(candidate.score),
            "attention": attention,
            "alignment": alignment,
            "positional_scores": torch.from_numpy(candidate.scores),
        }
