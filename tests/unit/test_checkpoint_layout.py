"""The parts of a checkpoint: present form, older one, weights alone, and tied weights."""

from argparse import Namespace

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_ext.checkpoints import layout
from fairseq_ext.checkpoints.layout import ties

OPTIONS = {"_name": "muse", "muse_kernels": "${other}"}


@pytest.mark.parametrize("form", [dict, lambda options: Namespace(**options), OmegaConf.create])
def test_options_in_every_form_are_plain_and_unresolved(form):
    assert layout.section({"model": form(OPTIONS)}, "model") == OPTIONS
    assert layout.section({"model": form(OPTIONS)}, "task") == {}


def test_older_checkpoints_have_all_options_in_one_place():
    args = Namespace(arch="transformer", maximize_best_checkpoint_metric=True)
    old = {"args": args, "cfg": None}
    assert layout.architecture(old) == "transformer"
    assert layout.options(old, "checkpoint")["maximize_best_checkpoint_metric"]


@pytest.mark.parametrize(
    ("model", "name"),
    [({"arch": "a", "_name": "b"}, "a"), ({"_name": "b"}, "b"), ({}, "unknown"), (None, "unknown")],
)
def test_architecture(model, name):
    assert layout.architecture({"args": None, "cfg": {"model": model}}) == name


def test_a_checkpoint_without_history_is_at_no_update():
    assert layout.num_updates({}) is None
    assert layout.num_updates(layout.before_training()) == 0
    assert layout.position(layout.before_training())["epoch"] == 1
    assert layout.position({"extra_state": None}) == {}


def test_what_is_tied():
    """A transposed matrix of the same memory is another weight; so are two without numbers."""
    weight, empty = torch.zeros(4, 4), torch.zeros(0)
    assert ties({"a": weight, "b": weight.view(4, 4)}) == {"b": "a"}
    assert ties({"a": empty, "b": empty}) == {}
    for other in (weight.clone(), weight.t(), weight[:2], weight.view(2, 8)):
        assert ties({"a": weight, "b": other}) == {}
    assert ties({"a": weight, "b": weight.view(torch.int32)}) == {}
