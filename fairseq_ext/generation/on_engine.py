"""Run fairseq's batches on our engine: its generator for every command, its scorer for references.

The engine has the interfaces of both. Files of the engine, which need neither torch nor fairseq,
are translated by :mod:`fairseq_ext.decoding.engine_translator`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.search import BeamSearch, LengthConstrainedBeamSearch, Sampling, Search
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor

from fairseq_ext.engine import TORCH, search_options
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.devices.executor import Executor
from fairseq_ext.engine.library import Found, Machine, Team, active_path
from fairseq_ext.engine.program import merged
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.engine.shortlist import Shortlist
from fairseq_ext.generation.length_penalty import GnmtGenerator, GnmtGeneratorWithAlignment
from fairseq_ext.generation.sampling import EpsilonSampling
from fairseq_ext.utils.errors import ConfigError

logger = logging.getLogger(__name__)


class Native:
    """A model, or several that vote, on the engine in place of something of fairseq's.

    Most weights are laid out when the first batch comes, and those that the program joins before
    that, so that no weight may change once this exists.

    Args:
        fallback: fairseq's, for whatever the engine cannot do in a batch.
        models: those to run.
        target: the dictionary of its output.
        numbers: one of the values of :data:`fairseq_ext.engine.ENGINES`.
        shortlist: tokens that translations may have; None: all.

    Raises:
        ConfigError: the engine does not have one of these models.
    """

    instead: str
    """Words for the log: what works where the engine does not."""
    _align: Callable[..., Any] | None
    """fairseq's function from attention to alignment, if one is asked for."""

    def __init__(
        self,
        fallback: Any,
        models: Sequence[BaseFairseqModel],
        target: Dictionary,
        numbers: str,
        shortlist: Shortlist | None = None,
    ) -> None:
        self._fallback, self._numbers, self._shortlist = fallback, numbers, shortlist
        end = fallback.eos
        self._program = merged([compile_model(model, target, end) for model in models])
        self._model = models[0]
        # none or one; all that share weights share the list
        self._teams: list[Team | Executor] = []
        self._left: set[str] = set()

    def _leave(self, reason: str) -> None:
        """Leave a batch to fairseq; see :func:`leave`. The log says so once."""
        if reason not in self._left:
            leave(self.instead, reason, self._numbers, self._shortlist)
            self._left.add(reason)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of fairseq's, such as ``eos``, which its commands ask for."""
        if name == "_fallback":  # while an object is copied it has none yet
            raise AttributeError(name)
        return getattr(self._fallback, name)

    def _translate(
        self,
        sources: Tensor,
        rules: Rules,
        prefixes: Sequence[Sequence[int]] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Found]]:
        if not self._teams:
            self._teams.append(self._opened())
        sentences = words(sources, self._program.symbols.pad)
        return self._teams[0].translate(sentences, rules, prefixes, numbers)

    def _opened(self) -> Team | Executor:
        """The program, in C or where the model is."""
        if self._numbers == TORCH:
            first = next(self._model.parameters())
            return Executor(self._program, first.device, first.dtype)
        machine = Machine(self._program, self._numbers, shortlist=self._shortlist)
        return Team(machine, torch.get_num_threads())

    def _hypothesis(self, candidate: Found, source: Tensor) -> dict[str, Any]:
        """One of fairseq's hypotheses.

        Args:
            candidate: the engine's, of ``T`` tokens.
            source: ``[S]``, with its pads, to which no attention is paid.

        Returns:
            Attention is ``[T, S]`` or None, and so is the alignment.
        """
        symbols, tokens = self._program.symbols, torch.from_numpy(candidate.tokens)
        attention = alignment = None
        if candidate.attention is not None:
            attention = torch.zeros(len(tokens), len(source))
            attention[:, source.ne(symbols.pad)] = torch.from_numpy(candidate.attention)
            if self._align is not None:
                alignment = self._align(attention, source, tokens, symbols.pad, symbols.end)
        return {
            "tokens": tokens,
            "score": torch.tensor(candidate.score),
            "attention": attention,
            "alignment": alignment,
            "positional_scores": torch.from_numpy(candidate.scores),
        }


def leave(instead: str, reason: str, numbers: str, shortlist: Shortlist | None) -> None:
    """Log what translates instead of the engine, and why.

    Raises:
        ConfigError: a shortlist, which is the engine's alone.
    """
    if shortlist is not None:
        raise ConfigError(f"`--shortlist` is for the engine alone, but {reason}")
    # fp32 is the default and changes nothing but the time; rounded weights were asked for.
    level = logging.INFO if numbers == "fp32" else logging.WARNING
    logger.log(level, "%s instead of the engine: %s", instead, reason)


def on_a_device(model: BaseFairseqModel) -> bool:
    """Whether a model is elsewhere than on the CPU."""
    return next(model.parameters()).device.type != "cpu"


def share_weights(generators: Iterable[Any]) -> None:
    """Let generators and scorers that the engine runs have the weights of their models once.

    Args:
        generators: for the same models and symbols and in the same numbers; those of fairseq are
            left alone.
    """
    first, *other_generators = [
        generator for generator in generators if isinstance(generator, Native)
    ] or [None]
    for other in other_generators:
        other._teams, other._shortlist = first._teams, first._shortlist
        other._program = first._program


def words(rows: Tensor, pad: int) -> list[list[int]]:
    """``[B, S]`` without its pads."""
    return [row[row.ne(pad)].tolist() for row in rows]


class NativeScorer(Native):
    """Scores the targets of fairseq's batches: a search that may go only one way.

    Args:
        scorer: its options are taken, and it scores targets that do not end with the only ``</s>``.
        others: as :class:`Native`.
    """

    instead = "fairseq's scorer scores"

    def __init__(self, scorer: SequenceScorer, *arguments: Any) -> None:
        super().__init__(scorer, *arguments)
        self._align = utils.extract_hard_alignment if scorer.compute_alignment else None

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
            reason = "translations begin with another symbol than they end with."
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
        """One of fairseq's hypotheses, whose attention is ``[S, T]``; empty where there is none."""
        hypothesis = super()._hypothesis(candidate, source)
        attention, alignment = hypothesis["attention"], hypothesis["alignment"]
        return {
            **hypothesis,
            "attention": torch.empty(0) if attention is None else attention.t(),
            "alignment": torch.empty(0) if alignment is None else alignment,
        }
