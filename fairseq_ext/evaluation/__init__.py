"""What happens after training: averaging, reading translations back, scores and pictures.

Each module is plain functions behind one subcommand of ``fairseq-ext``: :mod:`outputs` parses
``fairseq-generate``, :mod:`score` and :mod:`compounds` measure, :mod:`compare` puts systems side by
side (:mod:`bootstrap`, :mod:`compare_report`, :mod:`training_run`, :mod:`tables`), :mod:`average`
means checkpoints, :mod:`mbr` and :mod:`mbr_utilities` choose among samples, :mod:`scaling` fits
laws (:mod:`scaling_table`, :mod:`scaling_plot`), :mod:`plots`, :mod:`lengths`, :mod:`gates` draw.
Nothing is imported here, so that a command only pays for what it uses.
"""
