"""GRU with attention: Saleem & Uprety, "Neural Machine Translation with Attention".

A bidirectional GRU reads the source; a GRU decoder attends over its annotations (after Bahdanau
et al. 2015). The paper prints a dot score between a 256-d state and 512-d annotations, which is
undefined; its parameter count, 43,564,519, is that of additive attention, which is the default::

    e_j = v^T tanh(W [s_{t-1}; h_j] + b) + b_v          α = softmax(e)      c_t = Σ_j α_j h_j
    s_t = GRU([E y_{t-1}; c_t], s_{t-1})                logits = W_o [s_t; c_t; E y_{t-1}] + b_o
    s_0 = tanh(W_b [h→_S; h←_1] + b_b)

``docs/gru.md`` says where each equation is. ``reference.py`` has these equations in plain code,
with which the tests compare. ``attention.py`` has the scores, ``decoding.py`` the recurrence as in
the equations, ``recurrence.py`` fast recurrences and the encoder, ``model.py`` fairseq's wiring.

Usage: ``fairseq-train DATA --user-dir user_dir --arch gru_attention``.
"""
