"""Tied weights: one memory, read in one way."""

from __future__ import annotations

import torch

from fairseq_ext.checkpoints.layout import memory
from fairseq_ext.checkpoints.portable import ties


def test_what_is_tied():
    weight = torch.zeros(4, 4)
    assert memory(weight) == memory(weight.view(4, 4))
    for other in (weight.clone(), weight.t(), weight[:2], weight.view(2, 8)):
        assert memory(weight) != memory(other)
    assert memory(weight) != memory(weight.view(torch.int32))


def test_names_of_tied_weights():
    """A transposed matrix of the same memory is another weight; one without numbers is its own."""
    weight, none = torch.arange(4.0).view(2, 2), torch.zeros(0)
    state = {"a": weight, "b": weight, "turned": weight.t(), "none": none, "nothing": none}
    assert ties(state) == {"b": "a"}
