"""The state of a search from step to step, as tensors of fixed places and sizes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.engine.program import Code, Phase, Program

Dimensions = tuple["str | int", ...]
"""Numbers, and names of sizes: B, S, T, W and W+1."""


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
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, …: so few sizes that each can have its graph."""
    power = 1 << max(0, count - 1).bit_length()
    return 3 * power // 4 if power > 2 and count <= 3 * power // 4 else power


def layout(program: Program, attention: bool) -> dict[str, tuple[Dimensions, torch.dtype | None]]:
    """Names, shapes and types; None is the model's type.

    ``line [b, w, t]`` is the row at step t that hypothesis w descends from; what hypotheses had at
    each step stays as it was, ``[B, T, W, …]``. Finished hypotheses have a place each, and one
    that nobody reads. A sentence that is 0 in all of this is no sentence.
    """
    whole, number = torch.int64, torch.float32
    found: dict[str, tuple[Dimensions, torch.dtype | None]] = {
        "step": ((1,), whole),
        "open": (("B",), torch.bool),
        "real": (("B", "S"), torch.bool),
        "limit": (("B",), whole),
        "forced": (("B", "T"), whole),  # the token + 1, or 0
        "line": (("B", "W", "T"), whole),
        "tokens": (("B", "T", "W"), whole),
        "totals": (("B", "T", "W"), number),
        "count": (("B",), whole),
        "ended lines": (("B", "W+1", "T"), whole),
        "ended steps": (("B", "W+1"), whole),
        "ended totals": (("B", "W+1"), number),
    }
    if attention:
        found["attention"] = ("B", "T", "W", "S"), number
    for one in program.decoder:
        if one.code is Code.RECALL:
            register = one.inputs[0].register
            found[f"recalled {register}"] = ("B", "W", program.shapes[register].width), None
        elif one.code is Code.ATTEND_PAST:
            for part, place in zip(("keys", "values"), one.inputs[1:], strict=True):
                found[f"{part} {one.ints[1]}"] = ("B", "T", "W", place.width), None
        elif one.code in (Code.CONVOLVE, Code.TAPS):
            place = one.inputs[one.code is Code.CONVOLVE]
            found[f"rows {one.ints[1]}"] = ("B", "T", "W", place.width), None
        for place in one.inputs:
            width, phase, rows = program.shapes[place.register]
            if place.register >= 0 and phase is not Phase.HYPOTHESES:
                between = {Phase.TOKENS: ("S",), Phase.SENTENCES: (), Phase.SLOTS: (rows,)}[phase]
                found[f"source {place.register}"] = ("B", *between, width), None
    return found


def allocate(
    program: Program, attention: bool, sizes: Sizes, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Such tensors, all 0."""
    known = {"B": sizes.sentences, "S": sizes.source, "T": sizes.steps, "W": sizes.beam}
    known["W+1"] = sizes.beam + 1
    return {
        name: torch.zeros(
            [known.get(one, one) for one in shape], dtype=kind or dtype, device=device
        )
        for name, (shape, kind) in layout(program, attention).items()
    }


def empty(state: dict[str, Tensor]) -> None:
    """No sentences, at the first step."""
    for one in state.values():
        one.zero_()


def fill(state: dict[str, Tensor], parts: dict[str, Tensor]) -> None:
    """Put smaller tensors into the first places of those with their names."""
    for name, part in parts.items():
        state[name][tuple(map(slice, part.shape))].copy_(part)


def move(there: dict[str, Tensor], here: dict[str, Tensor], sentences: Tensor) -> None:
    """Some sentences to another memory, which has no others then."""
    empty(there)
    step = {"step": here["step"]}
    rest = here.keys() - step
    fill(there, step | {name: here[name].index_select(0, sentences) for name in rest})
