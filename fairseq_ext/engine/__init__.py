"""Translate without torch: compile models to programs for the machine, an interpreter in C.

:mod:`~fairseq_ext.engine.compilers` turns a model into a :mod:`~fairseq_ext.engine.program`,
:mod:`~fairseq_ext.engine.verify` proves that the machine can run the program, and
:mod:`~fairseq_ext.engine.library` runs it with the C code in ``native/``. In a bundle
(:mod:`fairseq_ext.model.program_file`), :mod:`~fairseq_ext.engine.recipes` say how to compute the
program's arrays from the named weights, which :mod:`~fairseq_ext.engine.tensors` reads.
:mod:`~fairseq_ext.engine.devices` runs the same programs in torch, on a GPU for example.
"""

BEGIN, PAD, END, UNKNOWN = SPECIAL = range(4)
"""Ids of fairseq's special symbols, with which every dictionary begins."""

NATIVE = {"native": "fp32", "native-bf16": "bf16", "native-int8": "int8"}
NUMBERS = tuple(NATIVE.values())

TORCH = "torch"
ENGINES = {**NATIVE, TORCH: TORCH}
"""Choices of ``--engine`` other than :data:`FAIRSEQ`, each with the number format of its weights.
With :data:`TORCH`, weights keep the model's format and stay on the model's device."""

FAIRSEQ, DEFAULT = "fairseq", "native"

SHORTLIST_HELP = (
    "file of `fairseq-ext shortlist`: the engine searches only the target tokens listed for the "
    "sentence's source tokens; faster, but scores change"
)

HELP = (
    "fairseq: fairseq's generator; native: on a CPU our engine, which gives the same translations "
    "many times faster, on a GPU fairseq's generator; native-bf16 and native-int8: our engine with "
    "rounded weights; torch: our engine's search in torch, for a GPU"
)
