"""Moving averages of the weights (``--store-ema``), of models that fairseq alone cannot average."""

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
    averaged = average.get_model().state_dict()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(averaged[name], 0.75 * before[name] + 0.25 * parameter)
    if flags is BMT:
        assert averaged["binary_stage.current"].equal(torch.tensor(1))
        assert average.get_model().encoder.layers[0].fc1.binary_weights


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fp32", [False, True])
def test_tied_weights_decay_once(kind: torch.dtype, fp32: bool) -> None:
    model, _ = build([*PRE_NORM, "--share-all-embeddings"])
    tied = model.to(kind).encoder.embed_tokens.weight
    assert tied is model.decoder.output_projection.weight
    torch.nn.init.zeros_(tied)
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.75, ema_fp32=fp32))
    torch.nn.init.ones_(tied)
    average.step(model, 1)
    names = {name for name, value in model.state_dict(keep_vars=True).items() if value is tied}
    assert len(names) == 3
    for state in (average.get_model().state_dict(), average.fp32_params if fp32 else {}):
        for name in names & state.keys():
            assert state[name].eq(0.25).all(), name


def test_a_resumed_run_averages_at_the_same_updates() -> None:
    """``--ema-update-freq 4``, killed after each of twelve updates."""

    def average(killed_after: int) -> torch.Tensor:
        model = torch.nn.Linear(1, 1)
        config = EMAConfig(store_ema=True, ema_decay=0.5, ema_update_freq=4, ema_start_update=3)
        torch.nn.init.zeros_(model.weight)
        actual = EMA(model, config)
        for update in range(1, 13):
            torch.nn.init.constant_(model.weight, update)
            actual.step(model, update)
            if update == killed_after:
                saved = actual.get_model().state_dict()
                actual = EMA(model, config)
                actual.restore(saved)
        return actual.get_model().weight

    uninterrupted = average(killed_after=0)
    assert uninterrupted.item() == 0.125 * 0 + 0.125 * 4 + 0.25 * 8 + 0.5 * 12
    for update in range(1, 12):
        assert average(update) == uninterrupted, update
