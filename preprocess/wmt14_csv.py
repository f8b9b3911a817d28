#!/usr/bin/env python
"""Turn the CSV files of WMT14 English–German into text and byte-level BPE for fairseq.

    python preprocess/wmt14_csv.py --data archive.zip --vocabulary encoder.json \\
        --merges vocab.bpe --out data/wmt14.en-de

The first half of the training rows is used, the last 1 % of that half for validation, and the
test file to test, as in the Linformer paper's section 2. See README.md in this folder.
"""

from __future__ import annotations

from fairseq_ext.corpora.command_lines import run_script

if __name__ == "__main__":
    run_script("wmt14_csv", __doc__)
