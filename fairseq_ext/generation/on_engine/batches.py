"""fairseq's batches on the engine: what its generator and its scorer have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_ext.engine import TORCH
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.devices.executor import Executor
from fairseq_ext.engine.ensemble import merged
from fairseq_ext.engine.library import Found, Machine, Team
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.engine.shortlist import Shortlist
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

    def __init__(
        self,
        fallback: Any,
        models: Sequence[BaseFairseqModel],
        target: Dictionary,
        numbers: str,
        shortlist: Shortlist | None = None,
    ) -> None:
        self._fallback, self._numbers, self._shortlist = fallback, numbers, shortlist
        self._program = merged([compile_model(model, target) for model in models])
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

    def _attention(self, candidate: Found, source: Tensor) -> Tensor | None:
        """``[T, S]`` over a source ``[S]`` with its pads, where it is 0."""
        if candidate.attention is None:
            return None
        attention = torch.zeros(len(candidate.tokens), len(source))
        attention[:, source.ne(self._program.symbols.pad)] = torch.from_numpy(candidate.attention)
        return attention


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
