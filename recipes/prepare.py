#!/usr/bin/env python
"""Check a user's own corpus and copy it, tokenized if wanted, into a run's folder.

    python recipes/prepare.py --data DIR --src es --tgt en --out text [--tokenize]

DIR holds ``train``, ``valid`` and ``test``, each with the languages as endings. Every split is
checked before anything is written, and the folder OUT appears whole or not at all.
"""

from __future__ import annotations

from fairseq_ext.corpora.command_lines import run_script

if __name__ == "__main__":
    run_script("prepare", __doc__)
