"""Programs on any device that torch has, with static memory: for GPUs.

:mod:`~fairseq_ext.engine.devices.operations` computes what ``native/machine.c`` computes, for
padded batches; :mod:`~fairseq_ext.engine.devices.memory` says what is kept from step to step;
:mod:`~fairseq_ext.engine.devices.search` is one step of beam search, without synchronization with
the device; :mod:`~fairseq_ext.engine.devices.executor` translates, and captures steps as CUDA
graphs.
"""
