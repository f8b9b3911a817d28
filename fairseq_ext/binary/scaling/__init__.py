"""Scaling laws of trained models, as section 5 of the BMT paper fits them.

:mod:`~fairseq_ext.binary.scaling.table` reads the losses of models of many sizes,
:mod:`~fairseq_ext.binary.scaling.law` fits a law to them, :mod:`~fairseq_ext.binary.scaling.plot`
draws both.
"""
