#!/usr/bin/env python
"""Write one side of a prepared corpus as plain text, as if nobody had translated it.

python recipes/monolingual.py --data bpe --src en --tgt de --language de --out mono.de
"""

from __future__ import annotations

from fairseq_ext.corpora.command_lines import run_script

if __name__ == "__main__":
    run_script("monolingual", __doc__)
