"""GRU with attention: Saleem & Uprety, "Neural Machine Translation with Attention".

A bidirectional GRU reads the source and makes an annotation ``h_j`` for each word. A GRU decoder
attends over the annotations (after Bahdanau et al. 2015). The paper prints the score as the dot
product of a state of 256 values and an annotation of 512, which is undefined. The paper's number of
parameters, 43,564,519, fits additive attention, so additive attention is the default::

    e_j = v^T tanh(W [s_{t-1}; h_j] + b) + b_v          α = softmax(e)      c_t = Σ_j α_j h_j
    s_t = GRU([E y_{t-1}; c_t], s_{t-1})                logits = W_o [s_t; c_t; E y_{t-1}] + b_o
    s_0 = tanh(W_b [h→_S; h←_1] + b_b)

``s_t`` are the decoder's states, ``y_t`` target words, ``E`` is their embedding table, ``h→`` and
``h←`` are the two halves of an annotation, and ``S`` is the number of source words.

``docs/gru.md`` says which code computes which equation. ``reference.py`` has these equations in
plain code; the tests compare the fast layers with it. ``model.py`` is the model for fairseq.

Usage: ``fairseq-train DATA --user-dir user_dir --arch gru_attention``.
"""
