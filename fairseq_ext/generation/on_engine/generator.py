"""The engine with the interface of fairseq's generator: for every command that builds one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.search import BeamSearch, LengthConstrainedBeamSearch, Sampling, Search
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor

from fairseq_ext.engine import TORCH, search_options
from fairseq_ext.engine.library import Found, active_path
from fairseq_ext.engine.shortlist import Shortlist
from fairseq_ext.generation.length_penalty import GnmtGenerator, GnmtGeneratorWithAlignment
from fairseq_ext.generation.on_engine.batches import Native, leave, on_a_device, words
from fairseq_ext.generation.on_engine.scorer import NativeScorer
from fairseq_ext.generation.sampling import EpsilonSampling
from fairseq_ext.utils.errors import ConfigError

GENERATORS = (
    SequenceGenerator,
    SequenceGeneratorWithAlignment,
    GnmtGenerator,
    GnmtGeneratorWithAlignment,
)
SEARCHES = (BeamSearch, LengthConstrainedBeamSearch, Sampling, EpsilonSampling)


def with_engine(
    generator: Any,
    models: Sequence[BaseFairseqModel],
    target: Dictionary,
    numbers: str,
    shortlist: Shortlist | None = None,
) -> Any:
    """The engine in place of fairseq's generator or scorer, or that itself, and the log says why.

    Args:
        generator: of fairseq, with all its options.
        models: those that it was made for.
        target: the dictionary of their output.
        numbers: one of the values of :data:`fairseq_ext.engine.ENGINES`.
        shortlist: tokens that translations may have; None: all.

    Raises:
        ConfigError: a shortlist, but the engine does not search; or too short a one.
    """
    scores = type(generator) is SequenceScorer
    native = NativeScorer if scores else NativeGenerator
    if shortlist is not None:
        if scores:
            raise ConfigError("`--shortlist` does not go with `--score-reference`.")
        shortlist.require(_followed(generator) + 2)
    try:
        reason = obstacle_in(models, numbers) or (None if scores else obstacle(generator))
        if reason is None and numbers == TORCH:
            reason = obstacle_in_torch(generator, shortlist)
        if reason is None:
            return native(generator, models, target, numbers, shortlist)
    except ConfigError as error:
        reason = str(error)
    leave(native.instead, reason, numbers, shortlist)
    return generator


def obstacle(generator: Any) -> str | None:
    """The reason why the engine cannot do what was asked for, or None."""
    if type(generator) not in GENERATORS or type(generator.search) not in SEARCHES:
        return "the engine has no constraints, diverse search or other generators."
    if generator.lm_model is not None:
        return "the engine has no language models."
    if generator.token_indices_to_suppress is not None:
        return "the engine suppresses no tokens."
    if generator.eos != generator.tgt_dict.eos():
        return "translations end with another symbol than `</s>`."
    limit = generator.max_len_a + generator.max_len_b  # of a source of one token
    if generator.min_len > limit and not generator.match_source_len:
        return "`--min-len` is above what `--max-len-a` and `--max-len-b` allow."
    if _followed(generator) + 2 > generator.vocab_size:
        return f"the vocabulary is too small for a beam of {generator.beam_size}."
    return None


def _followed(generator: SequenceGenerator) -> int:
    """How many tokens may be asked for after a hypothesis."""
    return 1 if isinstance(generator.search, Sampling) else 2 * generator.beam_size


def obstacle_in(models: Sequence[BaseFairseqModel], numbers: str) -> str | None:
    """The reason why the engine cannot run these models, or None.

    Raises:
        ConfigError: the engine was not compiled, or not for this processor, and would be needed.
    """
    if numbers != TORCH:
        if any(map(on_a_device, models)):
            return "the model is on a GPU, where `--engine torch` is ours."
        if any(next(model.parameters()).dtype is not torch.float32 for model in models):
            return "the model is in half precision."
        active_path()
    return next(filter(None, map(_obstacle_in_one, models)), None)


def _obstacle_in_one(model: BaseFairseqModel) -> str | None:
    if getattr(model, "full_context_alignment", False):
        return "the model was trained to align with the whole translation in view."
    if any(getattr(module, "apply_during_inference", False) for module in model.modules()):
        return "the engine has no `--retain-dropout`."
    return None


def obstacle_in_torch(generator: Any, shortlist: Shortlist | None) -> str | None:
    """The reason why `--engine torch` cannot do what was asked for, or None."""
    if type(generator) is SequenceScorer:
        return "`--engine torch` scores no references; fairseq's scorer reads whole ones at once."
    if shortlist is not None:
        return "`--engine torch` has no shortlists."
    if isinstance(generator.search, Sampling):
        return "`--engine torch` draws no samples."
    return None


def rules_of(generator: SequenceGenerator) -> search_options.Rules:
    """The rules that a generator was given; the seed of samples is drawn from torch."""
    alpha = getattr(generator, "gnmt_alpha", None)
    lenpen, blocker = generator.len_penalty, generator.repeat_ngram_blocker
    if alpha is None and not generator.normalize_scores:
        lenpen = None
    return search_options.Rules(
        beam=generator.beam_size,
        min_len=generator.min_len,
        max_len_a=generator.max_len_a,
        max_len_b=generator.max_len_b,
        lenpen=lenpen if alpha is None else alpha,
        length_offset=0.0 if alpha is None else 5.0,
        unkpen=generator.unk_penalty,
        temperature=generator.temperature,
        match_source_len=generator.match_source_len,
        no_repeat_ngram_size=0 if blocker is None else blocker.no_repeat_ngram_size,
        sampling=_sampling(generator.search),
        attention=hasattr(generator, "extract_alignment"),
    )


def _sampling(search: Any) -> search_options.Sampling | None:
    if not isinstance(search, Sampling):
        return None
    top_p = max(search.sampling_topp, 0.0)
    return search_options.Sampling(
        top_k=0 if top_p else max(search.sampling_topk, 0),
        top_p=top_p,
        epsilon=getattr(search, "epsilon", 0.0),
        seed=int(torch.randint(2**62, ())),
    )


class NativeGenerator(Native):
    """Translates batches of fairseq's.

    Args:
        generator: its options are taken, and it translates what the engine cannot: constraints,
            a start symbol of its own, and batches in which a prefix is a whole translation.
        others: as :class:`Native`.
    """

    instead = "fairseq's generator translates"

    def __init__(self, generator: SequenceGenerator, *arguments: Any) -> None:
        super().__init__(generator, *arguments)
        self._align = getattr(generator, "extract_alignment", None)
        self._rules = rules_of(generator)
        self._seen = 0

    @property
    def search(self) -> Search:
        """fairseq's, which a task may set after the generator is built."""
        return self._fallback.search

    @search.setter
    def search(self, search: Search) -> None:
        self._fallback.search = search
        self._rules = rules_of(self._fallback)

    def generate(
        self,
        models: Sequence[BaseFairseqModel],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Tensor]]]:
        """As :meth:`SequenceGenerator.generate`: hypotheses of each sentence, best first.

        Raises:
            ConfigError: a shortlist, but the engine cannot translate the batch.
        """
        symbols, reason = self._program.symbols, None
        if constraints is not None:
            reason = "the engine has no constraints."
        elif bos_token not in (None, symbols.begin):
            reason = "translations begin with another symbol than `</s>`."
        elif prefix_tokens is not None and prefix_tokens.eq(symbols.end).any():
            reason = "a target is shorter than `--prefix-size`."
        if reason is not None:
            self._leave(reason)
            unsupported = {"prefix_tokens": prefix_tokens, "constraints": constraints}
            return self._fallback.generate(models, sample, bos_token=bos_token, **unsupported)
        sources = sample["net_input"]["src_tokens"].cpu()
        prefixes = None if prefix_tokens is None else words(prefix_tokens.cpu(), symbols.pad)
        numbers = self._numbers_of(sample, len(sources))
        candidates = self._translate(sources, self._rules, prefixes, numbers)
        return [
            [self._hypothesis(candidate, row) for candidate in row_candidates]
            for row, row_candidates in zip(sources, candidates, strict=True)
        ]

    def _numbers_of(self, sample: dict[str, Any], count: int) -> Sequence[int]:
        """Return the sentence numbers (0, 1, … without ids): samples do not depend on batches."""
        first, self._seen = self._seen, self._seen + count
        return sample["id"].tolist() if "id" in sample else range(first, self._seen)

    def _hypothesis(self, candidate: Found, source: Tensor) -> dict[str, Tensor]:
        """One of fairseq's hypotheses; ``source`` ``[S]`` with its pads."""
        symbols, tokens = self._program.symbols, torch.from_numpy(candidate.tokens)
        attention, alignment = self._attention(candidate, source), torch.empty(0)
        if attention is not None and self._align is not None:
            alignment = self._align(attention, source, tokens, symbols.pad, symbols.end)
        return {
            "tokens": tokens,
            "score": torch.tensor(candidate.score),
            "attention": torch.empty(0) if attention is None else attention.t(),
            "alignment": alignment,
            "positional_scores": torch.from_numpy(candidate.scores),
        }
