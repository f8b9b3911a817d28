"""Bundles, the folders in which trained models are shipped: write, find, describe, trim, export.

:mod:`fairseq_ext.checkpoints.bundle` defines the format, and reads a bundle as a checkpoint.
"""
