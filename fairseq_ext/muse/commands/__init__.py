"""Subcommands for MUSE; see :mod:`fairseq_ext.commands`."""
