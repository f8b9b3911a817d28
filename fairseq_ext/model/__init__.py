"""Bundles of trained models: write, find, describe, trim and export them.

:mod:`fairseq_ext.checkpoints.bundle` defines the format, and reads a bundle as a checkpoint.
"""
