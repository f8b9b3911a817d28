"""BMT: Zhang et al. 2023, "Binarized Neural Machine Translation".

The weights and inputs of matrix products become ±B/2, which takes one bit for each number. Training
uses the straight-through gradient. Layer norms after every product, and a shortcut at the output of
the attention, make such a Transformer trainable::

    x_b = (floor(clip(x / B, -1 + ε, 1 - ε)) + 0.5) B          B = max |x|, detached       (3.1)
    Dense(A_b) = A_b W_b / s                                   scaling factor s            (3.3)
    FFN(A) = LN(LN(max(0, A_b W_1b + b_1))_b W_2b + b_2)                                   (3.4)
    q, k, v = LN(A_b W_b) for each head                                                    (3.4)
    Out(A) = LN(A_b W_b) + A                                                               (3.5)

``A`` are inputs, ``W`` are weights, ``b`` is a bias, ε a small constant, LN a layer norm. An index
b, as in ``A_b``, means binarized.

Weights may be ternary instead, as in BitNet b1.58 (Ma et al. 2024, "The Era of 1-bit LLMs")::

    W_t = round(clip(W / γ, -1, 1)) γ                  γ = mean |W|, detached

``docs/bmt.md`` says which code computes which equation. ``reference.py`` has these equations in
plain code; the tests compare the fast layers with it. ``model.py`` is the model for fairseq, and
``compose.py`` binarizes other architectures.

Usage: ``fairseq-train DATA --user-dir user_dir --arch bmt_base --bmt-preset bmt-1 --stage-updates
50000,88339 --lr-scheduler staged_cosine``.
"""

REGISTERS = ("distillation",)
BITS = "engine"
COMMANDS = {"evaluation": ("scaling-fit",)}
