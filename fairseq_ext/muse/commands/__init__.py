"""Subcommands of this wing; see :mod:`fairseq_ext.commands`."""
