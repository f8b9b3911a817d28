"""The criterion ``distillation`` is its definition, in chunks and with all logits at once."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_ext.binary import distillation
from fairseq_ext.plugin.features import speed
from fairseq_ext.utils.errors import ConfigError
from tests.support import models

PAD = 1
TEMPERATURE, WEIGHT = 2.5, 0.4


def scattered(name: str, seed: int) -> BaseFairseqModel:
    """A model in float64 whose predictions are far from uniform."""
    model = models.build(models.ARCHITECTURES[name], seed=seed)[0].double().train()
    for parameter in model.parameters():
        parameter.data *= 2
    return model


def taught(
    monkeypatch: pytest.MonkeyPatch, teacher: BaseFairseqModel | None, **options: float
) -> distillation.DistillationCriterion:
    monkeypatch.setattr(distillation, "load_teacher", lambda path, task: teacher)
    task = SimpleNamespace(target_dictionary=models.dictionary())
    return distillation.DistillationCriterion(task, False, "teacher.pt", **options).train()


def definition(student: BaseFairseqModel, teacher: BaseFairseqModel) -> tuple[Tensor, Tensor]:
    """The loss of every real word, and its negative log-likelihood."""
    sample = models.batch()
    real = sample["target"].ne(PAD)
    z = student(**sample["net_input"])[0][real]
    y = teacher(**sample["net_input"])[0][real].detach()

    def log_softmax(x: Tensor) -> Tensor:
        return x - x.exp().sum(-1, keepdim=True).log()

    nll = -log_softmax(z)[range(len(z)), sample["target"][real]]
    p, log_q = log_softmax(y / TEMPERATURE).exp(), log_softmax(z / TEMPERATURE)
    soft = -(TEMPERATURE**2) * (p * log_q).sum(-1)
    return WEIGHT * soft + (1 - WEIGHT) * nll, nll


@pytest.mark.parametrize("all_logits", [False, True])
def test_the_loss_and_its_gradients(all_logits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch with pads, by a teacher of another architecture."""
    student, teacher = scattered("bmt-float", 0), scattered("gru", 1).eval().requires_grad_(False)
    loss, nll = definition(student, teacher)
    weights = list(student.parameters())
    gradients = torch.autograd.grad(loss.sum(), weights)
    assert not torch.isclose(loss.sum(), nll.sum(), rtol=0.1)

    student.find_unused_parameters = all_logits
    criterion = taught(monkeypatch, teacher, temperature=TEMPERATURE, teacher_weight=WEIGHT)
    assert (speed.obstacle(criterion, student) is not None) == all_logits
    actual, _, logged = criterion(student, models.batch())
    # fairseq takes the likelihood of the references in fp32 where it has all logits.
    precise = {"rtol": 1e-5, "atol": 1e-5} if all_logits else {"rtol": 1e-9, "atol": 1e-11}
    torch.testing.assert_close(actual, loss.sum(), check_dtype=not all_logits, **precise)
    assert float(logged["nll_loss"]) == pytest.approx(nll.sum().item(), rel=precise["rtol"])
    torch.testing.assert_close(torch.autograd.grad(actual, weights), gradients, **precise)


def test_the_losses_of_single_words(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = scattered("bmt-float", 0), scattered("gru", 1).eval()
    expected, _ = definition(student, teacher)
    criterion = taught(monkeypatch, teacher, temperature=TEMPERATURE, teacher_weight=WEIGHT)
    actual = criterion(student, models.batch(), reduce=False)[0].view(
        models.batch()["target"].shape
    )
    real = models.batch()["target"].ne(PAD)
    torch.testing.assert_close(actual[real].double(), expected, rtol=1e-5, atol=1e-5)
    assert actual[~real].eq(0).all()


def test_validation_is_on_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = scattered("bmt-float", 0).eval(), scattered("gru", 1).eval()
    _, nll = definition(student, teacher)
    criterion = taught(monkeypatch, teacher, temperature=TEMPERATURE, teacher_weight=WEIGHT)
    actual = criterion.eval()(student, models.batch())[0]
    assert actual.item() == pytest.approx(nll.sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "`--temperature` must be above 0, but is 0.0"),
        ({"temperature": float("nan")}, "`--temperature` must be above 0, but is nan"),
        ({"teacher_weight": -0.1}, "`--teacher-weight` must be from 0 to 1, but is -0.1"),
        ({"teacher_weight": 1.1}, "`--teacher-weight` must be from 0 to 1, but is 1.1"),
    ],
)
def test_refuses(options: dict[str, float], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=message):
        taught(monkeypatch, None, **options)
