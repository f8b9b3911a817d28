"""Knowledge distillation: a trained model's probabilities replace the labels (section 4.1)."""

# Without `from __future__ import annotations`: fairseq reads the types of a configuration's fields.

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from omegaconf import II
from torch import Tensor

from fairseq_ext.base.configuration import option
from fairseq_ext.checkpoints import storage
from fairseq_ext.training import chunked_output, loss
from fairseq_ext.utils.errors import ConfigError, wrong_value


@dataclass
class DistillationConfig(FairseqDataclass):
    """Options of the criterion ``distillation``."""

    teacher: str = option(
        "", "checkpoint of the teacher, of any architecture, trained with the same dictionaries"
    )
    temperature: float = option(
        1.0,
        "number that divides the logits of teacher and student; the loss is multiplied by the "
        "number's square, so that gradients keep their size",
    )
    teacher_weight: float = option(
        1.0, "weight of the teacher in the loss; the references have the weight 1 minus this"
    )
    report_accuracy: bool = option(False, "also report the accuracy of predicted tokens")
    sentence_avg: bool = II("optimization.sentence_avg")


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute ``-τ² Σ_v p_v log q_v``, ``p = softmax(teacher / τ)``, ``q = softmax(student / τ)``.

    ``teacher`` and ``student`` are logits ``[..., V]`` for the ``V`` symbols of a vocabulary;
    ``temperature`` is ``τ``. The loss is ``[...]``, at least in fp32.
    """
    precise = torch.promote_types(student.dtype, torch.float32)
    q = F.log_softmax(student.to(precise) / temperature, dim=-1)
    p = F.softmax(teacher.detach().to(precise) / temperature, dim=-1)
    return -(p * q).sum(-1) * temperature**2


@register_criterion("distillation", dataclass=DistillationConfig)
class DistillationCriterion(LabelSmoothedCrossEntropyCriterion):
    """A criterion that trains on a teacher's probabilities and validates on the references.

    The training loss is ``teacher_weight`` times :func:`distillation_loss`, plus
    ``1 - teacher_weight`` times the references' cross-entropy. The teacher, from the checkpoint
    ``teacher``, is in evaluation mode and has no gradient. It is not a submodule, so neither
    checkpoints nor the optimizer contain it.
    """

    def __init__(
        self,
        task: FairseqTask,
        sentence_avg: bool,
        teacher: str,
        temperature: float = 1.0,
        teacher_weight: float = 1.0,
        report_accuracy: bool = False,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing=0.0, report_accuracy=report_accuracy)
        if not temperature > 0:
            raise wrong_value("--temperature", "above 0", temperature)
        if not 0 <= teacher_weight <= 1:
            raise wrong_value("--teacher-weight", "from 0 to 1", teacher_weight)
        self.temperature, self.teacher_weight = temperature, teacher_weight
        self._teacher = (load_teacher(teacher, task),)  # in a tuple it is not a submodule

    def compute_loss(
        self,
        model: BaseFairseqModel,
        net_output: tuple[Tensor, Any],
        sample: dict[str, Any],
        reduce: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood of the references.

        Both are sums over target tokens or, if ``reduce`` is false, ``[tokens, 1]``. In training
        with :mod:`fairseq_ext.training.chunked_output`, ``net_output`` has features instead of
        logits. Then the two sums are computed in chunks of tokens, and ``reduce`` is ignored.
        """
        if not self.training:
            return super().compute_loss(model, net_output, sample, reduce)
        features = net_output[0]
        teacher = self._teacher[0].to(device=features.device, dtype=features.dtype)
        if chunked_output.is_deferred(model):
            with torch.no_grad(), chunked_output.deferred(teacher):
                teacher_features = teacher(**sample["net_input"])[0]
            return loss.distilled_nll(
                chunked_output.output_layer(model, features),
                chunked_output.output_layer(teacher, teacher_features),
                sample["target"],
                self.temperature,
                self.teacher_weight,
                self.padding_idx,
            )
        nll = super().compute_loss(model, net_output, sample, reduce)
        with torch.no_grad():
            logits = teacher(**sample["net_input"])[0]
        distilled = distillation_loss(net_output[0], logits, self.temperature)
        distilled = distilled.masked_fill(sample["target"].eq(self.padding_idx), 0)
        distilled = distilled.sum() if reduce else distilled.view(-1, 1)
        return torch.lerp(nll[0], distilled.to(nll[0]), self.teacher_weight), nll[1]

    def obstacle(self) -> str | None:
        """Return why the teacher's logits cannot be computed in chunks, as a phrase, or None."""
        reason = chunked_output.obstacle(self._teacher[0])
        return None if reason is None else f"{reason} in the teacher"


def load_teacher(path: str, task: FairseqTask) -> BaseFairseqModel:
    """Load the teacher from a checkpoint, in evaluation mode and without gradients.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        ConfigError: ``path`` is empty, or the teacher has other dictionaries than the task.
    """
    if not path:
        raise ConfigError("`--criterion distillation` must have a `--teacher`, but has none.")
    storage.peek(path)  # explains an unusable checkpoint better than fairseq does
    try:
        (teacher,), _ = checkpoint_utils.load_model_ensemble([path], task=task)
    except RuntimeError as error:  # other dictionaries, or embeddings of other sizes
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"`--teacher` must be trained with the dictionaries of the data, but {reason}"
        ) from error
    return teacher.eval().requires_grad_(False)
