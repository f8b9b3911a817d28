"""Evaluate trained models: read translations, score and compare them, and draw pictures.

- :mod:`outputs` parses the output of ``fairseq-generate``.
- :mod:`score` scores translations.
- :mod:`compare` compares systems with the help of :mod:`significance`, :mod:`breakdown`,
  :mod:`training_log`, :mod:`tables` and :mod:`compare_report`.
- :mod:`neural` computes neural metrics.
- :mod:`plots` and :mod:`lengths` draw learning curves, alignments and BLEU by length.

Nothing is imported here, so that a command loads only the code it uses.
"""
