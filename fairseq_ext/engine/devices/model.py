"""A program's weights on a device, and what its operations read and write there."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.engine.program import Columns, Matrix, Program, Reading, Signs


class BinaryWeight(NamedTuple):
    """``levels[:, None] * signs``, ``[N, K]``; ``reading`` is how it reads its inputs."""

    signs: Tensor
    levels: Tensor
    reading: Reading


class Model:
    """A program with its weights on a device.

    Args:
        program: of a model.
        device: where to compute.
        dtype: of weights and registers; the search is in fp32, whatever this is.
    """

    def __init__(self, program: Program, device: torch.device, dtype: torch.dtype) -> None:
        self.program, self.device, self.dtype = program, device, dtype
        self.weights = [self._moved(matrix) for matrix in program.matrices]

    def _moved(self, matrix: Matrix | Signs) -> Tensor | BinaryWeight:
        placement = {"device": self.device, "dtype": self.dtype}
        if isinstance(matrix, Matrix):
            return torch.as_tensor(matrix.values).to(**placement)
        bits = np.unpackbits(matrix.values, axis=1, count=matrix.inputs, bitorder="little")
        signs = torch.from_numpy(bits).to(**placement) * 2 - 1
        return BinaryWeight(signs, torch.as_tensor(matrix.levels).to(**placement), matrix.reading)


@dataclass
class Frame:
    """The tensors that operations read and write.

    Attributes:
        model: the weights.
        tokens: ``[B, S]`` of the source, or the newest ``[B, W]``.
        positions: of these, ``[S]`` or ``[1]``.
        real: which source tokens are no pads, ``[B, S]``.
        state: of the decoder, as :mod:`fairseq_ext.engine.devices.memory` lays it out.
        registers: by number.
        shown: weights over the source ``[B, W, S]``, of each model those of the alignment.
    """

    model: Model
    tokens: Tensor
    positions: Tensor
    real: Tensor
    state: dict[str, Tensor] | None = None
    registers: dict[int, Tensor] = field(default_factory=dict)
    shown: list[Tensor] = field(default_factory=list)

    def read(self, place: Columns) -> Tensor:
        """Return columns of a register, ``[..., width]``."""
        return self.registers[place.register].narrow(-1, place.offset, place.width)

    def write(self, place: Columns, values: Tensor) -> None:
        """Write columns of a register."""
        width = self.model.program.shapes[place.register].width
        if values.size(-1) == width:
            self.registers[place.register] = values
            return
        if place.register not in self.registers:
            register = values.new_zeros(*values.shape[:-1], width)
            self.registers[place.register] = register
        self.read(place).copy_(values)

    def weight(self, number: int) -> Tensor | BinaryWeight | None:
        """Return a weight; None for -1."""
        return None if number < 0 else self.model.weights[number]

    # ---- the past, in the decoder ----

    @property
    def step(self) -> Tensor:
        """The number of the step, ``[1]``, from 0."""
        return self.state["step"]

    def keep(self, name: str, values: Tensor) -> Tensor:
        """Store this step's values ``[B, W, …]``; return those of all steps ``[B, T, W, …]``."""
        past = self.state[name]
        return past.index_copy_(1, self.step, values.unsqueeze(1).to(past))

    @cached_property
    def own_past(self) -> Tensor:
        """The hypotheses of all steps that each one descends from, or is: ``[B, W, T W]``.

        The engine's lines of ancestors as a mask. Attention of a sentence's hypotheses over all
        that it ever had is one product that reads each key once, and nothing is ever reordered.
        """
        line = self.state["line"]
        rows, times = (torch.arange(n, device=line.device) for n in line.shape[1:])
        return (line.unsqueeze(3).eq(rows) & times.le(self.step).unsqueeze(1)).flatten(2)

    def own_rows(self, past: Tensor, times: Tensor) -> Tensor:
        """Return each hypothesis's own rows of :meth:`keep` at some steps: ``[B, W, n, …]``."""
        rows = self.state["line"].index_select(2, times)
        sentences = torch.arange(len(rows), device=rows.device).view(-1, 1, 1)
        places = (sentences * past.size(1) + times) * past.size(2) + rows
        return past.flatten(0, 2).index_select(0, places.flatten()).unflatten(0, places.shape)
