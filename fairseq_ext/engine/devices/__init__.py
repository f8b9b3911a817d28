"""Run programs in static memory on any torch device, in particular on GPUs.

:mod:`~fairseq_ext.engine.devices.operations` does the operations of ``native/machine.c`` for
padded batches; :mod:`~fairseq_ext.engine.devices.search` is one step of beam search, without
synchronization with the device; :mod:`~fairseq_ext.engine.devices.executor` translates, lays out
the state kept between steps, and captures steps as CUDA graphs.
"""
