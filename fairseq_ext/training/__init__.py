"""Faster updates with the same results: the loss in chunks, and Adam's step.

The mathematics is in :mod:`~fairseq_ext.training.loss` and :mod:`~fairseq_ext.training.adam`,
without fairseq. The patches in :mod:`fairseq_ext.plugin.features.speed` make fairseq use both.
"""
