"""Each command reads a checkpoint once: one unpickling, one comparison of checksums."""

import re
import shutil

import pytest

from tests.support.harness import USER_DIR, after, run

BATCHES = "--max-tokens 400 --cpu --num-workers 0"
TRAINING = "--arch gru_tiny --optimizer adam --max-update 5"  # the checkpoint has made four

COUNTING = """
import atexit, zipfile
from unittest import mock
import torch

load, compare = (
    mock.patch.object(owner, name, autospec=True, side_effect=getattr(owner, name)).start()
    for owner, name in ((torch, "load"), (zipfile.ZipFile, "testzip"))
)
atexit.register(lambda: print("COUNTS", load.call_count, compare.call_count, file=sys.stderr))
"""
"""How often a command unpickles, and how often it compares checksums."""


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("fairseq-ext translate DATA --path MODEL --engine fairseq", 1),
        ("fairseq-generate DATA --path MODEL:OTHER --cpu --user-dir PLUGIN", 2),
        (f"fairseq-validate DATA --path MODEL --user-dir PLUGIN --task translation {BATCHES}", 1),
        (f"fairseq-train DATA --save-dir RUN --user-dir PLUGIN {TRAINING} {BATCHES}", 1),
        ("fairseq-ext average --inputs MODEL OTHER --output RUN/mean.pt", 2),
    ],
    ids=["translate", "generate", "validate", "resume", "average"],
)
def test_a_checkpoint_is_read_once(copy_data, copy_model, tmp_path, words: str, count: int) -> None:
    other = shutil.copy(copy_model, tmp_path)
    paths = {"DATA": copy_data, "MODEL": copy_model, "OTHER": other, "RUN": tmp_path}
    paths["PLUGIN"] = USER_DIR
    words = re.sub("[A-Z]{3,}", lambda name: str(paths[name[0]]), words)
    done = run(*after(COUNTING, *words.split()), stdin="1 2 3\n", cwd=tmp_path)
    counts = re.findall(r"^COUNTS (\d+) (\d+)$", done.stderr, re.MULTILINE)
    assert counts == [(str(count), str(count))]
