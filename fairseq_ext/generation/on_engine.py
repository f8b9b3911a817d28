"""Translate fairseq's batches with our engine instead of fairseq's generator.

:class:`NativeGenerator` has the interface of fairseq's generator. To translate with a bundle, which
needs neither torch nor fairseq, see :mod:`fairseq_ext.decoding.engine_translator`.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.search import (
    BeamSearch,
    LengthConstrainedBeamSearch,
    LexicallyConstrainedBeamSearch,
    Sampling,
    Search,
)
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor

from fairseq_ext.engine import TORCH
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.devices.executor import Executor
from fairseq_ext.engine.library import Hypothesis, Machine, Team, active_path
from fairseq_ext.engine.program import merged
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.engine.shortlist import Shortlist
from fairseq_ext.generation.generators import EpsilonSampling
from fairseq_ext.utils.errors import ConfigError

logger = logging.getLogger(__name__)


def log_fallback(reason: str, numbers: str, shortlist: Shortlist | None) -> None:
    """Log the ``reason`` why fairseq's generator translates instead of the engine.

    If the number format ``numbers`` is not ``fp32``, the message is a warning, because the engine
    would translate differently. Raise ConfigError if there is a ``shortlist``, which only the
    engine can use.
    """
    if shortlist is not None:
        raise ConfigError(f"`--shortlist` is for the engine alone, but {reason}")
    level = logging.INFO if numbers == "fp32" else logging.WARNING
    logger.log(level, "fairseq's generator translates instead of the engine: %s", reason)


def on_a_device(model: BaseFairseqModel) -> bool:
    """Return whether a model is on a device other than the CPU."""
    return next(model.parameters()).device.type != "cpu"


def share_weights(generators: Iterable[Any]) -> None:
    """Let all :class:`NativeGenerator` objects in ``generators`` use the weights of the first.

    They must all run the same models. Generators of other classes stay as they are.
    """
    natives = [generator for generator in generators if isinstance(generator, NativeGenerator)]
    for native in natives[1:]:
        native._teams, native._shortlist = natives[0]._teams, natives[0]._shortlist
        native._program = natives[0]._program


def unpadded(rows: Tensor, pad: int) -> list[list[int]]:
    """Convert ``B`` sentences, padded to ``S`` tokens ``[B, S]``, to ``B`` lists without pads."""
    return [row[row.ne(pad)].tolist() for row in rows]


GENERATORS = (SequenceGenerator, SequenceGeneratorWithAlignment)
SEARCHES = (
    *(BeamSearch, LengthConstrainedBeamSearch, LexicallyConstrainedBeamSearch),
    *(Sampling, EpsilonSampling),
)


def with_engine(
    generator: Any,
    models: Sequence[BaseFairseqModel],
    target: Dictionary,
    numbers: str,
    shortlist: Shortlist | None = None,
) -> Any:
    """Return a :class:`NativeGenerator`, which runs ``models`` on the engine.

    If the engine cannot replace ``generator``, log why and return ``generator``; if there is a
    ``shortlist`` (the tokens that translations may have), raise ConfigError instead. Also raise
    ConfigError if the shortlist is too small for the search. ``numbers`` is a value of
    :data:`fairseq_ext.engine.ENGINES`.
    """
    if shortlist is not None and type(generator) in GENERATORS:
        shortlist.require(_candidate_count(generator) + 2)
    try:
        reason = obstacle(generator, models, numbers, shortlist)
        if reason is None:
            return NativeGenerator(generator, models, target, numbers, shortlist)
    except ConfigError as error:
        reason = str(error)
    log_fallback(reason, numbers, shortlist)
    return generator


def obstacle(
    generator: Any,
    models: Sequence[BaseFairseqModel] = (),
    numbers: str = "fp32",
    shortlist: Shortlist | None = None,
) -> str | None:
    """Return the reason why the engine cannot replace ``generator``, or None if it can.

    The arguments are those of :func:`with_engine`. Raise ConfigError if the engine was not
    compiled, or cannot run on this processor.
    """
    if numbers != TORCH:
        if any(map(on_a_device, models)):
            return "the model is on a GPU, where only `--engine torch` runs our engine."
        if any(next(model.parameters()).dtype is not torch.float32 for model in models):
            return "the model is in half precision."
        active_path()  # refuses an engine that was not compiled
    for model in models:
        if getattr(model, "full_context_alignment", False):
            return "the model was trained to align with the whole translation in view."
        if any(getattr(module, "apply_during_inference", False) for module in model.modules()):
            return "the engine has no `--retain-dropout`."
    if type(generator) is SequenceScorer:
        return "the engine scores no references; fairseq's scorer reads a whole reference at once."
    if type(generator) not in GENERATORS or type(generator.search) not in SEARCHES:
        return "the engine has no diverse search and no other special generators."
    if generator.lm_model is not None or generator.token_indices_to_suppress is not None:
        return "the engine has no language models, and suppresses no tokens."
    limit = generator.max_len_a + generator.max_len_b  # for a source of one token
    if generator.min_len > limit and not generator.match_source_len:
        return "`--min-len` is above what `--max-len-a` and `--max-len-b` allow."
    if _candidate_count(generator) + 2 > generator.vocab_size:
        return f"the vocabulary is too small for a beam of {generator.beam_size}."
    search = generator.search
    special = shortlist is not None or search.supports_constraints or isinstance(search, Sampling)
    if numbers == TORCH and special:
        return "`--engine torch` has no shortlists, constraints or samples."
    return None


def _candidate_count(generator: SequenceGenerator) -> int:
    """Return the number of candidates for a hypothesis's next token, as in :class:`Rules`."""
    return 1 if isinstance(generator.search, Sampling) else 2 * generator.beam_size


def rules_of(generator: SequenceGenerator) -> Rules:
    """Convert a generator's search options to the engine's.

    For sampling, draw the engine's seed with torch's random numbers.
    """
    search, blocker = generator.search, generator.repeat_ngram_blocker
    draws: dict[str, Any] = {}
    if isinstance(search, Sampling):
        top_p = max(search.sampling_topp, 0.0)
        top_k = 0 if top_p else max(search.sampling_topk, 0)
        epsilon, seed = getattr(search, "epsilon", 0.0), int(torch.randint(2**62, ()))
        draws = {"top_k": top_k, "top_p": top_p, "epsilon": epsilon, "seed": seed}
    return Rules(
        beam=generator.beam_size,
        min_len=generator.min_len,
        max_len_a=generator.max_len_a,
        max_len_b=generator.max_len_b,
        lenpen=generator.len_penalty if generator.normalize_scores else None,
        unkpen=generator.unk_penalty,
        temperature=generator.temperature,
        match_source_len=generator.match_source_len,
        no_repeat_ngram_size=0 if blocker is None else blocker.no_repeat_ngram_size,
        sampling=bool(draws),
        **draws,
        attention=hasattr(generator, "extract_alignment"),
        unordered=getattr(generator.search, "representation", "") == "unordered",
    )


class NativeGenerator:
    """A generator that runs a model or an ensemble on the engine, in place of fairseq's generator.

    fairseq's generator, the ``fallback``, translates what the engine cannot:

    - batches whose translations do not start with the end symbol;
    - batches in which the prefix of a translation has the end symbol.

    The weights of the models must not change afterwards: this object copies some of them at once,
    and the others at the first batch.
    """

    def __init__(
        self,
        fallback: SequenceGenerator,
        models: Sequence[BaseFairseqModel],
        target: Dictionary,
        numbers: str,
        shortlist: Shortlist | None = None,
    ) -> None:
        self._fallback, self._numbers, self._shortlist = fallback, numbers, shortlist
        self._program = merged([compile_model(model, target, fallback.eos) for model in models])
        self._model, self._rules, self._seen = models[0], rules_of(fallback), 0
        # Empty, or with one team of threads. Generators that share weights share this list.
        self._teams: list[Team | Executor] = []
        self._left: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the fallback, such as ``eos``, which fairseq's commands read."""
        if name == "_fallback":  # an object that is being copied has no fallback yet
            raise AttributeError(name)
        return getattr(self._fallback, name)

    @property
    def search(self) -> Search:
        """The search strategy of fairseq's own generator, which a task may replace."""
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
        """Translate a batch into hypotheses, best first, as :class:`SequenceGenerator` does."""
        symbols, reason = self._program.symbols, None
        if bos_token not in (None, symbols.begin):
            reason = "the start symbol of translations is not their end symbol."
        elif prefix_tokens is not None and prefix_tokens.eq(symbols.end).any():
            reason = "a target is shorter than `--prefix-size`."
        elif constraints is not None and self._numbers == TORCH:
            reason = "`--engine torch` has no constraints."
        if reason is not None:
            if reason not in self._left:  # log each reason once
                log_fallback(reason, self._numbers, self._shortlist)
                self._left.add(reason)
            unsupported = {"prefix_tokens": prefix_tokens, "constraints": constraints}
            return self._fallback.generate(models, sample, bos_token=bos_token, **unsupported)
        sources = sample["net_input"]["src_tokens"].cpu()
        prefixes = None if prefix_tokens is None else unpadded(prefix_tokens.cpu(), symbols.pad)
        # Samples depend on a sentence's number, and therefore not on its batch.
        first, self._seen = self._seen, self._seen + len(sources)
        numbers = sample["id"].tolist() if "id" in sample else range(first, self._seen)
        if not self._teams:
            self._teams.append(self._open())
        sentences = unpadded(sources, symbols.pad)
        required = None if constraints is None else constraints[:, 1:].tolist()  # column 0: count
        candidates = self._teams[0].translate(sentences, self._rules, prefixes, numbers, required)
        return [
            [self._hypothesis(candidate, row) for candidate in row_candidates]
            for row, row_candidates in zip(sources, candidates, strict=True)
        ]

    def _open(self) -> Team | Executor:
        """Start the engine of the number format: in torch on the model's device, or in C."""
        if self._numbers == TORCH:
            first = next(self._model.parameters())
            return Executor(self._program, first.device, first.dtype)
        machine = Machine(self._program, self._numbers, shortlist=self._shortlist)
        return Team(machine, torch.get_num_threads())

    def _hypothesis(self, candidate: Hypothesis, source: Tensor) -> dict[str, Tensor]:
        """Convert a hypothesis of T tokens from the engine's form to fairseq's.

        ``source [S]`` has S source tokens, pads included. The attention is ``[S, T]``, and 0
        for pads. If the engine has not computed it, the attention is an empty tensor.
        """
        symbols, tokens = self._program.symbols, torch.from_numpy(candidate.tokens)
        attention = alignment = torch.empty(0)
        if candidate.attention is not None:
            attention = torch.zeros(len(tokens), len(source))
            attention[:, source.ne(symbols.pad)] = torch.from_numpy(candidate.attention)
            align = self._fallback.extract_alignment  # without it, there would be no attention
            alignment = align(attention, source, tokens, symbols.pad, symbols.end)
            attention = attention.t()
        return {
            "tokens": tokens,
            "score": torch.tensor(candidate.score),
            "attention": attention,
            "alignment": alignment,
            "positional_scores": torch.from_numpy(candidate.scores),
        }
