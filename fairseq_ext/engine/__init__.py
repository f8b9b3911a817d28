"""Translation without torch: programs for a native machine.

:mod:`~fairseq_ext.engine.program` describes what a model, or several that vote, compute, operation
by operation;
:mod:`~fairseq_ext.engine.compilers` makes a program of a trained model;
:mod:`~fairseq_ext.engine.weights` lays its weights out, in fp32, bf16 or int8;
:mod:`~fairseq_ext.engine.verify` proves that the machine can run both;
:mod:`~fairseq_ext.engine.library` runs it, with the C code in ``native/``;
:mod:`~fairseq_ext.engine.devices` runs programs in torch, also on a GPU;
:mod:`~fairseq_ext.engine.shortlist` names the target tokens that a sentence may need, as
:mod:`~fairseq_ext.engine.lexicon` learns them from training data;
:mod:`~fairseq_ext.engine.recipes` says how its arrays are made of a model's named weights, and
:mod:`~fairseq_ext.engine.tensors` reads these from a file;
:mod:`~fairseq_ext.engine.engine_model` has all of it in one object.

:mod:`fairseq_ext.model.program_file` keeps it in a bundle,
:mod:`fairseq_ext.decoding.engine_translator` translates with it, and
:mod:`fairseq_ext.generation.on_engine` with a model of fairseq in this process.
"""

from __future__ import annotations

BEGIN, PAD, END, UNKNOWN = SPECIAL = range(4)
"""Ids of fairseq's special symbols, with which every dictionary begins."""

NATIVE = {"native": "fp32", "native-bf16": "bf16", "native-int8": "int8"}
NUMBERS = tuple(NATIVE.values())

TORCH = "torch"
ENGINES = {**NATIVE, TORCH: TORCH}
"""Choices of ``--engine`` besides :data:`FAIRSEQ`, and the numbers that weights are stored as;
:data:`TORCH` leaves them as they are, and where they are."""

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
