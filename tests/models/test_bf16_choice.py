"""bf16 that is slower than fp32 on this processor is said to be, with the ratio."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fairseq_ext.plugin.features import speed
from fairseq_ext.training import onednn_matmul


def test_the_shape_that_most_weights_have_is_timed(monkeypatch):
    """The embeddings are not multiplied by, and the seconds are those of the two types."""
    timed = []

    def seconds(x, weight, repeats):
        timed.append((*x.shape, *weight.shape))
        return {torch.float32: 2.0, torch.bfloat16: 5.0}[x.dtype]

    monkeypatch.setattr(onednn_matmul, "_seconds", seconds)
    layers = [nn.Linear(8, 24), nn.Linear(8, 24), nn.Linear(16, 16), nn.Embedding(100, 8)]
    assert onednn_matmul.times_as_long(nn.ModuleList(layers)) == 2.5
    assert timed == [(onednn_matmul.ROWS, 8, 24, 8)] * 2
    assert onednn_matmul.times_as_long(nn.LayerNorm(8)) is None


def test_it_is_measured_here():
    ratio = onednn_matmul.times_as_long(nn.Linear(64, 32), repeats=1)
    assert ratio is not None
    assert ratio > 0


@pytest.mark.parametrize(
    ("ratio", "requested", "device", "master", "warning"),
    [
        (2.46, True, "cpu", True, "take 2.5 times as long as in fp32"),
        (0.5, True, "cpu", True, ""),
        (None, True, "cpu", True, ""),
        (2.46, False, "cpu", True, ""),
        (2.46, True, "cuda", True, ""),
        (2.46, True, "cpu", False, ""),
    ],
)
def test_the_warning(ratio, requested, device, master, warning, monkeypatch, caplog):
    monkeypatch.setattr(onednn_matmul, "times_as_long", lambda model: ratio)
    trainer = SimpleNamespace(device=torch.device(device), is_data_parallel_master=master)
    cfg = SimpleNamespace(common=SimpleNamespace(bf16=requested))
    with caplog.at_level(logging.WARNING):
        speed.warn_of_slow_bf16.wrapper(lambda *arguments: None)(
            trainer, cfg, None, nn.Linear(2, 2)
        )
    assert warning in caplog.text
    assert bool(caplog.text) == bool(warning)
