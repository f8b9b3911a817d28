"""A plugin for tests: a criterion that makes failures, and pauses in which tests kill training.

``--criterion faulty --fault gradient --fault-factor inf --fault-at 5`` multiplies the gradients of
the fifth and all later batches by infinity. If the environment variable ``PAUSE`` is ``training``,
``validation`` or ``saving``, the process makes the file ``paused`` and sleeps at the second batch
of training or validation, or after the second file that it saves.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig

from fairseq_ext import register

register()


@dataclass
class FaultyConfig(CrossEntropyCriterionConfig):
    fault: str = field(default="", metadata={"help": "loss, gradient, logged or validation"})
    fault_factor: float = field(default=float("nan"), metadata={"help": "factor of the fault"})
    fault_at: int = field(default=5, metadata={"help": "first training batch with the fault"})


@register_criterion("faulty", dataclass=FaultyConfig)
class FaultyCriterion(CrossEntropyCriterion):
    def __init__(
        self, task: Any, sentence_avg: bool, fault: str, fault_factor: float, fault_at: int
    ) -> None:
        super().__init__(task, sentence_avg)
        self.fault, self.factor, self.fault_at = fault, fault_factor, fault_at
        self.batches = 0

    def forward(self, model: Any, sample: Any, reduce: bool = True) -> tuple[Any, Any, dict]:
        loss, size, logged = super().forward(model, sample, reduce)
        self.batches += self.training
        pause("training" if self.training else "validation")
        if self.batches >= self.fault_at and self.training == (self.fault != "validation"):
            if self.fault == "gradient":
                loss.register_hook(lambda gradient: gradient * self.factor)
            elif self.fault == "loss":
                loss = loss * self.factor
            if self.fault:
                logged["loss"] = loss.data * (1 if self.fault == "gradient" else self.factor)
        return loss, size, logged


reached: list[str] = []


def pause(where: str) -> None:
    if os.environ.get("PAUSE") != where:
        return
    reached.append(where)
    if len(reached) == 2:
        Path("paused").touch()
        time.sleep(600)


save = torch.save


def save_and_pause(*values: Any, **options: Any) -> None:
    save(*values, **options)
    pause("saving")


torch.save = save_and_pause
