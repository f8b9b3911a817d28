"""Evaluate trained models: read translations, score and compare them, and draw pictures.

Each module has the plain functions behind a subcommand of ``fairseq-ext``: :mod:`outputs` parses
the output of ``fairseq-generate``, :mod:`score` scores it, :mod:`compare` puts systems side by
side (with :mod:`significance`, :mod:`compare_report`, :mod:`training_log` and :mod:`tables`), and
:mod:`plots` and :mod:`lengths` draw it. Nothing is imported here, so that a command loads only the
code it uses.
"""
