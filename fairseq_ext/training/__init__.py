"""Faster updates with the same numbers: the loss in chunks, and Adam's step.

The mathematics is in :mod:`~fairseq_ext.training.loss` and :mod:`~fairseq_ext.training.adam`
(torch only); the rows of :mod:`fairseq_ext.plugin.features.speed` give it to fairseq.
"""
