"""Linformer for translation: Pampaloni, "Evaluating Linformer's performance on the WMT14 EN-DE
machine translation task", after Wang et al. 2020 (arXiv 2006.04768).

Attention over ``K`` mixtures of the ``n`` source tokens instead of the tokens themselves, with
learned mixtures E and F, ``[K, N]``, of which a source of ``n ≤ N`` tokens uses the first columns::

    head = softmax(Q (E K)^T / √D) F V

in the encoder's self-attention and in the decoder's cross-attention, which become linear in ``n``.
The decoder's self-attention stays exact: a mixture over positions cannot be causal (section 1.2).

``reference.py`` has the equation in plain code and is what the tests compare with.
``projection.py`` has E and F, ``attention.py`` the equation above, ``model.py`` the fairseq wiring,
``encoder.py`` the sentence classifier.

Usage: ``fairseq-train DATA --user-dir user_dir --arch linformer``.
"""

REGISTERS = ("encoder",)
