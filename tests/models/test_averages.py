"""Moving averages of the weights (``--store-ema``), of models that fairseq alone cannot average."""

from __future__ import annotations

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA

from tests.support.models import BMT, MUSE, SMALL, build

PRE_NORM = ["--arch", "transformer", *SMALL, "--encoder-normalize-before"]


@pytest.mark.parametrize("fp32", [False, True])
@pytest.mark.parametrize("flags", [BMT, MUSE, PRE_NORM])
def test_moving_averages_keep_the_stage(flags: list[str], fp32: bool) -> None:
    """fairseq's ``--store-ema``: weights are averaged, the stage is the model's."""
    model, _ = build(flags)
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.75, ema_fp32=fp32))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data += 1
    model.set_num_updates(5)
    if flags is BMT:
        model.binary_stage.enter(1)
    average.step(model, 5)
    found = average.get_model().state_dict()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], 0.75 * before[name] + 0.25 * parameter)
    if flags is BMT:
        assert found["binary_stage.current"].equal(torch.tensor(1))
        assert average.get_model().encoder.layers[0].fc1.binary_weights
