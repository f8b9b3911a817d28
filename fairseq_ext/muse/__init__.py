"""MUSE: Zhao et al. 2019, "MUSE: Parallel Multi-Scale Attention for Sequence to Sequence Learning".

Self-attention (global), dynamic convolution (local) and a feed-forward network (for each token)
read the same input in parallel. Attention and convolution share one value projection::

    x ← LN(x + D(A(x) W_O + Σ_i softmax(α)_i Conv_i(V) W_out) + D(FFN(x)))      encoder, (1), (7)
    x ← LN(x + … + D(Cross(x, source)))                                         decoder
    Conv(V)_t = Σ_j softmax(W_k V_t)_j V_{t + j - ⌈(k+1)/2⌉}                     (5), (6)

A is the attention without its output matrix, V are its values, α is a learned gate with a number
for each convolution, k a kernel size, and D dropout. MUSE-simple (2) has no convolutions.

``docs/muse.md`` says which code computes which equation. ``reference.py`` has the equations in
plain code; the tests compare the fast layers with it. ``model.py`` connects the block to fairseq.

Usage: ``fairseq-train DATA --user-dir user_dir --arch muse_iwslt_de_en``.
"""

PICTURES = ("plot_gates",)
