#!/usr/bin/env python
"""Split sentence pairs into train, valid and test so that no sentence leaks between them.

    python preprocess/split_pairs.py spa-eng.zip --columns 2,1 --src-lang es --tgt-lang en \\
        --lowercase --tokenize --max-words 50 --valid 2000 --test 2000 --out data/es-en

A corpus often gives one sentence several translations; a random split then puts some into train
and others into test. Here a hash of the sentence, not of the pair, decides. See README.md.
"""

from __future__ import annotations

from fairseq_ext.corpora.command_lines import run_script

if __name__ == "__main__":
    run_script("split_pairs", __doc__)
