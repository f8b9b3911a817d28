"""The state of a search from step to step, as tensors with fixed addresses and sizes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.engine.program import Code, Phase, Program

Dimensions = tuple["str | int", ...]
"""A shape: numbers, and names of sizes, which are B, S, T, W and W+1."""


class Sizes(NamedTuple):
    """Sizes of the memory.

    Attributes:
        sentences, source, steps: B, the tokens S of the longest source, T.
        beam: W.
    """

    sentences: int
    source: int
    steps: int
    beam: int


def rounded(count: int) -> int:
    """Round up to 1, 2, 3, 4, 6, 8, 12, 16, …, so that few sizes need a graph."""
    power = 1 << max(0, count - 1).bit_length()
    return 3 * power // 4 if power > 2 and count <= 3 * power // 4 else power


def layout(program: Program, attention: bool) -> dict[str, tuple[Dimensions, torch.dtype | None]]:
    """Return the tensors' names, shapes and types; None is the model's type.

    ``line [b, w, t]`` is the row at step t that hypothesis w descends from; the data of each
    step stays unchanged, ``[B, T, W, …]``. Finished hypotheses have a place each, and one
    more place is never read. A sentence whose numbers are all 0 is empty.
    """
    integer, number = torch.int64, torch.float32
    shapes: dict[str, tuple[Dimensions, torch.dtype | None]] = {
        "step": ((1,), integer),
        "open": (("B",), torch.bool),
        "real": (("B", "S"), torch.bool),
        "limit": (("B",), integer),
        "forced": (("B", "T"), integer),  # the token + 1, or 0
        "line": (("B", "W", "T"), integer),
        "tokens": (("B", "T", "W"), integer),
        "totals": (("B", "T", "W"), number),
        "count": (("B",), integer),
        "ended lines": (("B", "W+1", "T"), integer),
        "ended steps": (("B", "W+1"), integer),
        "ended totals": (("B", "W+1"), number),
    }
    if attention:
        shapes["attention"] = ("B", "T", "W", "S"), number
    for operation in program.decoder:
        if operation.code is Code.RECALL:
            register = operation.inputs[0].register
            shapes[f"recalled {register}"] = ("B", "W", program.shapes[register].width), None
        elif operation.code is Code.ATTEND_PAST:
            for part, place in zip(("keys", "values"), operation.inputs[1:], strict=True):
                shapes[f"{part} {operation.ints[1]}"] = ("B", "T", "W", place.width), None
        elif operation.code in (Code.CONVOLVE, Code.TAPS, Code.FILTER):
            place = operation.inputs[operation.code is Code.CONVOLVE]
            shapes[f"rows {operation.ints[1]}"] = ("B", "T", "W", place.width), None
        for place in operation.inputs:
            width, phase, rows = program.shapes[place.register]
            if place.register >= 0 and phase is not Phase.HYPOTHESES:
                between = {Phase.TOKENS: ("S",), Phase.SENTENCES: (), Phase.SLOTS: (rows,)}[phase]
                shapes[f"source {place.register}"] = ("B", *between, width), None
    return shapes


def allocate(
    program: Program, attention: bool, sizes: Sizes, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Allocate the tensors of :func:`layout`, all 0."""
    dimensions = {"B": sizes.sentences, "S": sizes.source, "T": sizes.steps, "W": sizes.beam}
    dimensions["W+1"] = sizes.beam + 1
    return {
        name: torch.zeros(
            [dimensions.get(dimension, dimension) for dimension in shape],
            dtype=kind or dtype,
            device=device,
        )
        for name, (shape, kind) in layout(program, attention).items()
    }


def empty(state: dict[str, Tensor]) -> None:
    """Clear the state: no sentences, and the first step."""
    for tensor in state.values():
        tensor.zero_()


def fill(state: dict[str, Tensor], parts: dict[str, Tensor]) -> None:
    """Copy smaller tensors into the first places of the state's tensors with their names."""
    for name, part in parts.items():
        state[name][tuple(map(slice, part.shape))].copy_(part)


def move(target: dict[str, Tensor], source: dict[str, Tensor], sentences: Tensor) -> None:
    """Move some sentences to another memory, which is cleared first."""
    empty(target)
    step = {"step": source["step"]}
    rest = source.keys() - step
    fill(target, step | {name: source[name].index_select(0, sentences) for name in rest})
