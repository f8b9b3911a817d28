"""Translate without torch: compile a model to a program, and run the program in C.

A *program* (:mod:`~fairseq_ext.engine.program`) is a list of operations that compute a model.

- :mod:`~fairseq_ext.engine.compilers` makes a program from the modules of a model.
- :mod:`~fairseq_ext.engine.verify` proves that a program reads and writes only its own memory.
- :mod:`~fairseq_ext.engine.library` runs programs on the *machine*, the interpreter in ``native/``.
- :mod:`~fairseq_ext.engine.devices` runs programs in torch instead, for example on a GPU.

A bundle (:mod:`fairseq_ext.model.program_file`) stores a trained model as a program, named weights
(:mod:`~fairseq_ext.engine.tensors`) and recipes (:mod:`~fairseq_ext.engine.recipes`). A recipe says
how to compute an array of the program from the weights.
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
    "fairseq: fairseq's generator; native: on a CPU our engine (the same translations, many times "
    "faster), on a GPU fairseq's generator; native-bf16 and native-int8: our engine with rounded "
    "weights; torch: our engine's search in torch, for a GPU"
)
