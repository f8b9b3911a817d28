"""Translate without torch: compile models to programs, and run them on a native machine.

:mod:`~fairseq_ext.engine.compilers` makes a :mod:`~fairseq_ext.engine.program` from a model,
:mod:`~fairseq_ext.engine.verify` proves that the machine can run it, and
:mod:`~fairseq_ext.engine.library` does, with the C code in ``native/``. In a bundle
(:mod:`fairseq_ext.model.program_file`), :mod:`~fairseq_ext.engine.recipes` say how its arrays are
computed from the named weights that :mod:`~fairseq_ext.engine.tensors` reads.
"""

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
