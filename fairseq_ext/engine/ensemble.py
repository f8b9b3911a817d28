"""One program of several models that vote (numpy only).

It has the operations of each model, one model after another, and an output layer of each; the
search takes the mean of their probabilities, as fairseq's ``EnsembleModel`` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_ext.engine.program import NOTHING, Code, Columns, Operation, Output, Program
from fairseq_ext.utils.errors import ConfigError

CACHED = (Code.ATTEND_PAST, Code.CONVOLVE, Code.TAPS)
"""Operations whose ``ints[1]`` is the number of a cache, or -1."""


def merged(programs: Sequence[Program], weights: Sequence[int] | None = None) -> Program:
    """Join the programs of several models.

    Args:
        programs: with the same target symbols; a single program is returned as it is.
        weights: the number of weights of each program, where these are kept outside its
            ``matrices``. The ensemble numbers them program by program.

    Raises:
        ConfigError: they write different tokens.
    """
    first, *rest = programs
    if not rest:
        return first
    sizes = {  # a file's weights are verified later
        len(model.matrices[layer.weight].values)
        for model in programs
        if model.matrices
        for layer in model.outputs
    }
    if len(sizes) > 1 or any(model.symbols != first.symbols for model in rest):
        raise ConfigError("the engine has no ensembles of models with different target tokens.")
    source = min(model.longest_source for model in programs)
    target = min(model.longest_target for model in programs)
    ensemble, number = Program(first.symbols, source, target), 0
    counts = weights or [len(model.matrices) for model in programs]
    for model, count in zip(programs, counts, strict=True):
        _append(ensemble, model, number)
        number += count
    return ensemble


def _append(ensemble: Program, model: Program, weights: int) -> None:
    """Add a model to an ensemble; its weights are numbered from ``weights`` on."""
    registers, caches = len(ensemble.shapes), ensemble.caches

    def place(old: Columns) -> Columns:
        return old if old == NOTHING else old._replace(register=old.register + registers)

    def weight(number: int) -> int:
        return number if number < 0 else number + weights

    def operation(old: Operation) -> Operation:
        ints = list(old.ints)
        if old.code in CACHED and ints[1] >= 0:
            ints[1] += caches
        return old._replace(
            out=place(old.out),
            inputs=tuple(map(place, old.inputs)),
            weights=tuple(map(weight, old.weights)),
            ints=tuple(ints),
        )

    ensemble.matrices += model.matrices
    ensemble.shapes += model.shapes
    ensemble.encoder += map(operation, model.encoder)
    ensemble.decoder += map(operation, model.decoder)
    ensemble.caches += model.caches
    ensemble.outputs += [
        Output(place(layer.result), weight(layer.weight), weight(layer.bias))
        for layer in model.outputs
    ]
