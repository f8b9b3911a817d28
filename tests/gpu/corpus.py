"""A binarized corpus made on the spot: log-normal lengths, Zipf's frequencies, a fixed seed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

USER_DIR = Path(__file__).resolve().parents[2] / "user_dir"


def write_text(folder: Path, *, sentences: int, vocabulary: int, mean: float) -> None:
    """Write ``{train,valid,test}.{src,tgt}``; a target is its source with other words."""
    draw = random.Random(1)
    words = [f"w{number}" for number in range(vocabulary - 4)]  # fairseq adds four
    weights = [1 / (rank + 10) for rank in range(len(words))]
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in {"train": sentences, "valid": 64, "test": 64}.items():
        lines = []
        for _ in range(count):
            length = min(100, max(2, round(draw.lognormvariate(0, 0.5) * mean)))
            lines.append(draw.choices(words, weights, k=length))
        if split == "train":
            lines += [words[start : start + 25] for start in range(0, len(words), 25)]
        for side in ("src", "tgt"):
            text = (" ".join(line if side == "src" else line[::-1]) for line in lines)
            (folder / f"{split}.{side}").write_text("\n".join(text) + "\n")


def binarize(folder: Path, *, sentences: int, vocabulary: int, mean: float = 22) -> Path:
    """Make the corpus once; return the folder of binarized data."""
    data = folder / "bin"
    if (data / "complete").exists():
        return data
    write_text(folder, sentences=sentences, vocabulary=vocabulary, mean=mean)
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--user-dir", str(USER_DIR)]
    command += ["--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary"]
    for split in ("train", "valid", "test"):
        command += [f"--{split}pref", str(folder / split)]
    subprocess.run([*command, "--destdir", str(data)], check=True, capture_output=True)
    (data / "complete").touch()
    return data
