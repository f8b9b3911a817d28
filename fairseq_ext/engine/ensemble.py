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
    """The program of several models.

    Args:
        programs: with the same target; one alone stays as it is.
        weights: how many each of them has, if they are not its matrices. The whole numbers them
            as they come, program by program.

    Raises:
        ConfigError: they write different tokens.
    """
    first, *others = programs
    if not others:
        return first
    sizes = {  # a file's weights are verified later
        len(one.matrices[layer.weight].values)
        for one in programs
        if one.matrices
        for layer in one.outputs
    }
    if len(sizes) > 1 or any(one.symbols != first.symbols for one in others):
        raise ConfigError("the engine has no ensembles of models with different target tokens.")
    source = min(one.longest_source for one in programs)
    target = min(one.longest_target for one in programs)
    whole, number = Program(first.symbols, source, target), 0
    counts = weights or [len(one.matrices) for one in programs]
    for one, count in zip(programs, counts, strict=True):
        _append(whole, one, number)
        number += count
    return whole


def _append(whole: Program, one: Program, weights: int) -> None:
    """Add a model, whose weights become those from number ``weights`` on."""
    registers, caches = len(whole.shapes), whole.caches

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

    whole.matrices += one.matrices
    whole.shapes += one.shapes
    whole.encoder += map(operation, one.encoder)
    whole.decoder += map(operation, one.decoder)
    whole.caches += one.caches
    whole.outputs += [
        Output(place(layer.result), weight(layer.weight), weight(layer.bias))
        for layer in one.outputs
    ]
