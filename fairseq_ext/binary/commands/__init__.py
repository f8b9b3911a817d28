"""Subcommands for BMT; see :mod:`fairseq_ext.commands`."""
