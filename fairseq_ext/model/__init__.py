"""Write, find, describe, trim and export bundles, the folders in which we ship trained models.

:mod:`fairseq_ext.checkpoints.bundle` defines the format, and reads a bundle as a checkpoint.
"""
