"""After training: translations are read back, scored and compared, and runs are drawn.

Each module is plain functions behind one subcommand of ``fairseq-ext``: :mod:`outputs` parses
``fairseq-generate``, :mod:`score` measures, :mod:`compare` puts systems side by
side (:mod:`bootstrap`, :mod:`compare_report`, :mod:`training_log`, :mod:`tables`), :mod:`plots` and
:mod:`lengths` draw. Nothing is imported here, so that a command only pays for what it uses.
"""
