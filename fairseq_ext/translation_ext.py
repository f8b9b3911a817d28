"""The task ``translation_ext``: fairseq's ``translation`` with more control over the data."""

from dataclasses import dataclass

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask


@dataclass
class TranslationExtConfig(TranslationConfig):
    """Every stock flag of ``translation``."""


@register_task("translation_ext", dataclass=TranslationExtConfig)
class TranslationExtTask(TranslationTask):
    """``translation``, with options for truncation, a start symbol and the order of batches."""
