"""Translation without torch: programs for a native machine.

:mod:`~fairseq_ext.engine.program` describes what a model computes, operation by operation;
:mod:`~fairseq_ext.engine.compilers` makes a program of a trained model;
:mod:`~fairseq_ext.engine.weights` lays its weights out, in fp32, bf16 or int8;
:mod:`~fairseq_ext.engine.native` runs it, with the C code in ``native/``.
"""
