"""Translate without torch: compile models to programs, and run them on a native machine.

:mod:`~fairseq_ext.engine.program` describes the computation of a model, or of an ensemble,
as a list of operations;
:mod:`~fairseq_ext.engine.compilers` makes a program from a trained model;
:mod:`~fairseq_ext.engine.weights` lays the weights out, in fp32, bf16 or int8;
:mod:`~fairseq_ext.engine.verify` proves that the machine can run a program with its weights;
:mod:`~fairseq_ext.engine.library` runs it, with the C code in ``native/``;
:mod:`~fairseq_ext.engine.devices` runs programs in torch, also on a GPU;
:mod:`~fairseq_ext.engine.shortlist` selects the target tokens that a sentence may need;
:mod:`~fairseq_ext.engine.lexicon` learns them from training data;
:mod:`~fairseq_ext.engine.recipes` computes a program's arrays from a model's named weights;
:mod:`~fairseq_ext.engine.tensors` reads these weights from a file;
:mod:`~fairseq_ext.engine.engine_model` combines program, weights and settings in one object.

:mod:`fairseq_ext.model.program_file` stores this object in a bundle,
:mod:`fairseq_ext.decoding.engine_translator` translates with it, and
:mod:`fairseq_ext.generation.on_engine` runs a model of fairseq on the engine in this process.
"""

from __future__ import annotations

BEGIN, PAD, END, UNKNOWN = SPECIAL = range(4)
"""Ids of fairseq's special symbols, with which every dictionary begins."""

NATIVE = {"native": "fp32", "native-bf16": "bf16", "native-int8": "int8"}
NUMBERS = tuple(NATIVE.values())

TORCH = "torch"
ENGINES = {**NATIVE, TORCH: TORCH}
"""Choices of ``--engine`` besides :data:`FAIRSEQ`, with the number format of the weights;
:data:`TORCH` keeps the weights' format and device."""

FAIRSEQ, DEFAULT = "fairseq", "native"

SHORTLIST_HELP = (
    "file of `fairseq-ext shortlist`: the engine searches only the target tokens listed for the "
    "sentence's source tokens; faster, but scores change"
)

HELP = (
    "generator: fairseq's, or our engine, which is many times faster on a CPU: native gives the "
    "same translations, native-bf16 and native-int8 round the weights; on a GPU, native is "
    "fairseq's generator, and torch is the engine's search"
)
