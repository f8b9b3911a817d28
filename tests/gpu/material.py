"""What the steps share: a corpus made on the spot, flags of models, fairseq's commands."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers import Size

from tests.gpu.results import ERROR_LENGTH
from tests.support.harness import USER_DIR, write_lines

GRU = "--arch gru_attention --encoder-embed-dim {0} --decoder-embed-dim {0} "
GRU += "--encoder-hidden-size {0} --decoder-hidden-size {0} --share-all-embeddings"


def write_text(folder: Path, *, sentences: int, vocabulary: int, mean: float) -> None:
    """Write ``{train,valid,test}.{src,tgt}``; a target is its source in reverse order."""
    draw = random.Random(1)
    words = [f"w{number}" for number in range(vocabulary - 4)]  # fairseq adds four
    weights = [1 / (rank + 10) for rank in range(len(words))]
    for split, count in {"train": sentences, "valid": 64, "test": 64}.items():
        lines = []
        for _ in range(count):
            length = min(100, max(2, round(draw.lognormvariate(0, 0.5) * mean)))
            lines.append(draw.choices(words, weights, k=length))
        if split == "train":
            lines += [words[start : start + 25] for start in range(0, len(words), 25)]
        write_lines(folder / f"{split}.src", [" ".join(line) for line in lines])
        write_lines(folder / f"{split}.tgt", [" ".join(line[::-1]) for line in lines])


def binarize(folder: Path, *, sentences: int, vocabulary: int, mean: float = 22) -> Path:
    """Make a corpus of log-normal lengths and Zipf's frequencies once; return its folder."""
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


class Command:
    """A command of fairseq's with the plugin, its output in a file.

    Args:
        log: file.
        words: name without ``fairseq-``, then arguments.
        environment: further variables.
    """

    def __init__(self, log: Path, *words: object, **environment: str) -> None:
        self.log, self.name = log, str(words[0])
        log.parent.mkdir(parents=True, exist_ok=True)
        arguments = [*map(str, words[1:]), "--user-dir", str(USER_DIR)]
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"fairseq_cli.{self.name}", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    def wait(self, limit: float) -> str:
        """Return the output.

        Raises:
            RuntimeError: it failed, or was not ready in time.
        """
        try:
            status = self.process.wait(max(limit, 1))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            status = "no time left"
        output = self.log.read_text(errors="replace")
        if status != 0:
            raise RuntimeError(f"{self.name}: status {status}: {output[-ERROR_LENGTH:]}")
        return output


def log_lines(output: str, tag: str) -> list[dict[str, Any]]:
    """The JSON lines of ``--log-format json`` with a tag: ``train_inner``, ``valid`` …"""
    lines = [line.split("|")[-1].strip() for line in output.splitlines() if f"| {tag} |" in line]
    return [json.loads(line) for line in lines if line.startswith("{")]


def base(tiny: bool) -> dict[str, list[str]]:
    """Models 512 wide with six layers on both sides, and a GRU of 512."""
    width, inner, heads, layers = (32, 48, 2, 1) if tiny else (512, 2048, 8, 6)
    full = Size(width, inner, heads, layers, layers).flags()
    narrow = Size(width, inner // 2, heads, layers, layers).flags()
    small = Size(width, inner // 2, heads // 2, layers, layers).flags()
    muse = ["--arch", "muse_base", *narrow]
    return {
        "transformer": ["--arch", "transformer", *small],
        "transformer-base": ["--arch", "transformer", *full],
        "gru": GRU.format(width).split(),
        "linformer": ["--arch", "linformer", *small, "--linformer-k", "32"],
        "muse": muse,
        "muse-simple-fused": [*muse, "--muse-kernels", "none", "--muse-fused"],
        "bmt-1": ["--arch", "bmt", *small],
    }
