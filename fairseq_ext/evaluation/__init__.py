"""What happens after training: averaging, reading translations back, scores and pictures.

Each module is plain functions behind one subcommand of ``fairseq-ext``: :mod:`outputs` parses
``fairseq-generate``, :mod:`score` measures, :mod:`average` means checkpoints, :mod:`plots` draws.
Nothing is imported here, so that a command only pays for what it uses.
"""
