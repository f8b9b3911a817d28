#!/usr/bin/env python
"""Prepare a corpus of the literature from its official archives, exactly as its papers do.

    python preprocess/corpus.py iwslt14_de_en --out data/iwslt14_de_en

Download, verify, unpack, normalize, tokenize, clean, split, byte-pair encoding: every step is done
once, and a run that was stopped goes on. See README.md in this folder.
"""

from __future__ import annotations

from fairseq_ext.corpora.command_lines import run_script

if __name__ == "__main__":
    run_script("corpus", __doc__)
