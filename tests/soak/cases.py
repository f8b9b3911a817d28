"""The commands that `commands.py` kills and `disk.py` runs short of room, and what each writes."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.soak import forks
from tests.soak.kills import BMT
from tests.support import damages
from tests.support.harness import USER_DIR
from tests.support.trainings import TRAINING

Words = Callable[[Path], list[object]]


@dataclass
class Case:
    """A command.

    Attributes:
        name: for the report.
        words: the command for a folder of its own.
        outputs: files there by which the work counts as done; others may be torn before.
        old: a file that lies there before, and must survive a command that fails.
    """

    name: str
    words: Words
    outputs: tuple[str, ...]
    old: str = ""

    def prepare(self, folder: Path) -> None:
        """Make the folder as the command finds it."""
        folder.mkdir(exist_ok=True)
        if self.old:
            (folder / self.old).write_bytes(b"old")

    def difference(self, folder: Path, reference: Path) -> str:
        """How a finished folder differs from the reference, or nothing."""
        return "" if contents(folder) == contents(reference) else "other files"

    def require_survivors(self, folder: Path, before: dict[str, str]) -> None:
        """Raise an assertion if a command that failed has changed the folder."""
        after = contents(folder)
        assert after == before, sorted(set(after.items()) ^ set(before.items()))


def cases(scratch: Path, data: Path) -> list[Case]:
    """Commands on a tiny corpus and a tiny BMT, which is trained in ``scratch``."""
    log, model, text = scratch / "model.log", scratch / "model", data.parent / "text"
    run = (*TRAINING, *BMT, "--max-update", 3, "--stage-updates", "1,1,1", "--warmup-updates", 0)
    words = ["fairseq-train", data, *run, "--save-dir", model, "--user-dir", USER_DIR]
    assert forks.run(words, log) == 0, log.read_text()[-1500:]
    last, bundle = model / "checkpoint_last.pt", scratch / "bundle.zip"
    make_bundle = ("bundle", last, "--data", data)
    assert forks.run(["fairseq-ext", *make_bundle, "-o", bundle], scratch / "bundle.log") == 0

    def writing(name: str, output: str, *command: object, old: str = "") -> Case:
        def words(folder: Path) -> list[object]:
            return ["fairseq-ext", name, *command, folder / output]

        return Case(f"fairseq-ext {name}", words, (output,), old or output)

    def preprocess(workers: int) -> Case:
        def words(folder: Path) -> list[object]:
            return [
                *("fairseq-preprocess", "--user-dir", USER_DIR, "--workers", workers),
                *("--source-lang", "src", "--target-lang", "tgt", "--destdir", folder),
                *("--trainpref", text / "train", "--validpref", text / "valid"),
                *("--testpref", text / "test"),
            ]

        name = f"fairseq-preprocess, {workers} process{'es' * (workers > 1)}"
        return Case(name, words, ("dict.src.txt", "dict.tgt.txt"))

    return [
        writing("average", "average.pt", "--inputs", last, last, "-o"),
        # A bundle replaces nothing, so the file that must survive has another name.
        writing("bundle", "bundle.zip", *make_bundle[1:], "-o", old="mine"),
        writing("describe", "report.json", bundle, "--json"),
        writing("plot", "curves.svg", "curves", "--log", f"gru={log}", "-o"),
        *(preprocess(workers) for workers in (1, 2)),
    ]


def contents(folder: Path) -> dict[str, str]:
    """Checksums of the files below a folder, but for logs and what is hidden."""
    return {
        str(path.relative_to(folder)): checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.suffix != ".log"
    }


def checksum(path: Path) -> str:
    """SHA-256 of what a file says: safetensors writes its names in any order."""
    content = path.read_bytes()
    if path.suffix == ".safetensors" and content[8:9] == b"{":
        header, numbers = damages.parts(content)
        content = json.dumps(json.loads(header), sort_keys=True).encode() + numbers
    return hashlib.sha256(content).hexdigest()
