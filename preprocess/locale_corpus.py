#!/usr/bin/env python
"""Write a parallel corpus for any two languages, without a download, from locale data.

    python preprocess/locale_corpus.py --src en --tgt de --out data/locale.en-de

Dates, times, amounts, measures, relative times, number words, territories, languages and
currencies, alone and in lists, as Babel (Unicode CLDR) and num2words write them in each
language. See README.md in this folder.
"""

from __future__ import annotations

from fairseq_ext.corpora.command_lines import run_script

if __name__ == "__main__":
    run_script("locale_corpus", __doc__)
