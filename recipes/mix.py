#!/usr/bin/env python
"""Add pairs of which a model has written one side to a prepared corpus: tagged, cleaned, counted.

    python recipes/mix.py --data bpe --src en --tgt de --tag '<BT>' \\
        --source translations.en --target mono.de --out mixed

The pairs are text and become tokens by the corpus's text.json. The folder OUT appears whole or not
at all; its synthetic.json counts what was left out, and why.
"""

from __future__ import annotations

from fairseq_ext.corpora.command_lines import run_script

if __name__ == "__main__":
    run_script("mix", __doc__)
