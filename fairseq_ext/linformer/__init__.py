"""Linformer for translation, after Wang et al. 2020 (arXiv 2006.04768).

Pampaloni, "Evaluating Linformer's performance on the WMT14 EN-DE machine translation task".
Attention reads a fixed number of mixtures of the ``n`` source tokens instead of the tokens
themselves. The weights of the mixtures are two learned matrices E and F, with a row for each
mixture and ``N`` columns. A source of ``n ≤ N`` tokens uses the first ``n`` columns of both::

    head = softmax(Q (E K)^T / √D) F V

``Q``, ``K`` and ``V`` are the queries, keys and values of a head with ``D`` channels.

The encoder's self-attention and the decoder's cross-attention work like this, and their cost grows
linearly with ``n``. The decoder's self-attention stays exact, because a mixture over positions
cannot be causal (section 1.2).

``docs/linformer.md`` says which code computes which equation. ``reference.py`` has the equation in
plain code; the tests compare the fast layer with it. ``model.py`` is the model for fairseq,
``encoder.py`` the sentence classifier.

Usage: ``fairseq-train DATA --user-dir user_dir --arch linformer``.
"""

REGISTERS = ("encoder",)
