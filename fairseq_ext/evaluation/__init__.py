"""Evaluate trained models: read translations, score and compare them, and draw pictures.

The modules have the functions behind subcommands of ``fairseq-ext``. :mod:`outputs` parses the
output of ``fairseq-generate``; :mod:`score` scores translations; :mod:`compare` puts systems side
by side (with :mod:`significance`, :mod:`compare_report`, :mod:`training_log` and :mod:`tables`);
:mod:`plots` and :mod:`lengths` draw learning curves, alignments and BLEU by length. Nothing is
imported here, so that a command loads only the code it uses.
"""
