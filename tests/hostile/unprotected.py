"""Load hostile files with stock fairseq and unsafe pickles, to show that their code would run.

``python unprotected.py NAMES.json DATA CANARY`` prints, as JSON, the names of the files of which
the canary appeared. Only files of ours are given to it.
"""

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path

import torch
from fairseq import checkpoint_utils


def sings(path: str, data: str, canary: Path) -> bool:
    """Whether code of a file runs in any of the ways in which it may be read without care."""
    torch.serialization.add_safe_globals([argparse.Namespace])
    unsafe = {"map_location": "cpu", "weights_only": False}
    overrides = {"data": data}
    for read in (
        lambda: torch.load(path, **unsafe),
        lambda: checkpoint_utils.load_model_ensemble_and_task([path], overrides),
    ):
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            read()
        if canary.exists():
            canary.unlink()
            return True
    return False


if __name__ == "__main__":
    names, data, canary = sys.argv[1:]
    files = json.loads(Path(names).read_text())
    print(json.dumps([n for n, path in files.items() if sings(path, data, Path(canary))]))
