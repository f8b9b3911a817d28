"""Faster updates with the same results: the loss in chunks, and Adam's step.

:mod:`~fairseq_ext.training.loss` and :mod:`~fairseq_ext.training.adam` compute them, and do not
import fairseq. The patches in :mod:`fairseq_ext.plugin.features.speed` make fairseq use both.
"""
