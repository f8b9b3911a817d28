"""Bundles of trained models: one form to keep, ship, serve and take apart.

:mod:`fairseq_ext.checkpoints.bundle` has the format, and reads it as a checkpoint of fairseq.
"""
