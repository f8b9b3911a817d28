"""No space, no right to write, files too long, too few file handles: one line, and nothing is lost.

Each command has a good file or folder to lose. It must end with one line, leave what was there, and
do its work when it is started again without the trouble. As root, a small file system in memory
becomes full or read-only; other users have a limit on the size of files, and a folder's rights.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.soak.kills import BMT, LENGTH, difference, progress
from tests.soak.report import Report, noted, parser
from tests.support import damages
from tests.support.harness import USER_DIR, after, binarize, digits_corpus
from tests.support.trainings import ARCHITECTURES, TRAINING

ROOM = 12 << 20  # bytes of the small file system
ROOT = os.geteuid() == 0
Words = Callable[[Path], list[object]]
FILE_LIMIT = "from resource import *; setrlimit(RLIMIT_FSIZE, ({0}, {0}))"
HANDLE_LIMIT = """
from resource import *
used = {{int(path.name) for path in Path("/proc/self/fd").iterdir()}}
number = [handle for handle in range(1 << 16) if handle not in used][{}]
setrlimit(RLIMIT_NOFILE, (number, number))
"""


def attempt(words: list[object], code: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command after some code; its output goes through pipes, which no limit hits."""
    return subprocess.run(after(code, *words), input="", capture_output=True, text=True)


def done(words: list[object]) -> str:
    """Run a command, which must succeed; return its output."""
    ended = attempt(words)
    assert ended.returncode == 0, ended.stderr[-1500:]
    return ended.stdout + ended.stderr


@dataclass
class Case:
    """A command, which must not lose the file ``old`` in its folder when it fails."""

    name: str
    words: Words
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
    log.write_text(done(words))
    last, bundle = model / "checkpoint_last.pt", scratch / "bundle.zip"
    make_bundle = ("bundle", last, "--data", data)
    done(["fairseq-ext", *make_bundle, "-o", bundle])

    def writing(name: str, output: str, *command: object, old: str = "") -> Case:
        def words(folder: Path) -> list[object]:
            return ["fairseq-ext", name, *command, folder / output]

        return Case(f"fairseq-ext {name}", words, old or output)

    def preprocess(workers: int) -> Case:
        def words(folder: Path) -> list[object]:
            return [
                *("fairseq-preprocess", "--user-dir", USER_DIR, "--workers", workers),
                *("--source-lang", "src", "--target-lang", "tgt", "--destdir", folder),
                *("--trainpref", text / "train", "--validpref", text / "valid"),
                *("--testpref", text / "test"),
            ]

        name = f"fairseq-preprocess, {workers} process{'es' * (workers > 1)}"
        return Case(name, words)

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


class Training(Case):
    """A training that goes on with half of it done."""

    def __init__(self, data: Path) -> None:
        def words(folder: Path) -> list[object]:
            where = ("--save-dir", folder, "--user-dir", USER_DIR)
            options = (*TRAINING, *ARCHITECTURES["gru_tiny"], *LENGTH)
            return ["fairseq-train", data, *options, *where]

        super().__init__("fairseq-train", words)

    def prepare(self, folder: Path) -> None:
        done([*self.words(folder), "--max-update", 9])

    def difference(self, folder: Path, reference: Path) -> str:
        return difference(folder, reference)

    def require_survivors(self, folder: Path, before: dict[str, str]) -> None:
        """No checkpoint is lost, none goes back, and no temporary file is left."""
        assert progress(folder) >= 9
        lost = sorted(before.keys() - contents(folder).keys())
        assert not lost, lost
        assert not list(folder.glob("*.tmp")), "a temporary file is left"


@contextmanager
def small(folder: Path) -> Iterator[None]:
    """A file system of its own at ``folder``, for root."""
    folder.mkdir(parents=True)
    if ROOT:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder)]
        subprocess.run(mount, check=True)
    try:
        yield
    finally:
        if ROOT:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def full(folder: Path, left: int) -> Iterator[str]:
    """Only ``left`` bytes are free (or: files cannot be longer than that)."""
    if not ROOT:
        yield FILE_LIMIT.format(left)
        return
    free = shutil.disk_usage(folder).free
    filler = folder.parent / "filler" if folder.parent.is_mount() else folder / ".filler"
    filler.write_bytes(b"\0" * max(0, free - left))
    try:
        yield ""
    finally:
        filler.unlink()


@contextmanager
def too_long(folder: Path, left: int) -> Iterator[str]:
    """No file can become longer than ``left`` bytes."""
    yield FILE_LIMIT.format(left)


@contextmanager
def read_only(folder: Path, left: int) -> Iterator[str]:
    """Nothing can be written."""
    place = folder.parent if folder.parent.is_mount() else folder

    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)

    if ROOT:
        remount("ro")
    else:
        folder.chmod(0o555)
    try:
        yield ""
    finally:
        if ROOT:
            remount("rw")
        else:
            folder.chmod(0o755)


@contextmanager
def no_handles(folder: Path, left: int) -> Iterator[str]:
    """The process can open only so many files more."""
    yield HANDLE_LIMIT.format(left)


TROUBLES = {
    "disk full": (full, (0, 4096, 60_000)),
    "file too long": (too_long, (0, 1000, 60_000)),
    "read-only": (read_only, (0,)),
    "no file handles": (no_handles, (0, 1, 3)),
}


def one_line(message: str) -> None:
    """Exactly one error, and no traceback."""
    assert "Traceback" not in message, f"traceback: {message[-1500:]}"
    errors = [line for line in message.splitlines() if "fairseq-ext: error: " in line]
    assert len(errors) == 1, f"{len(errors)} error lines: {message[-1200:]}"


def trouble(case: Case, kind: str, left: int, place: Path, reference: Path) -> bool:
    """One run in trouble and one without; true if the trouble was felt."""
    causing, _ = TROUBLES[kind]
    with small(place):
        folder = place / "out"
        folder.mkdir()
        case.prepare(folder)
        before = contents(folder)
        with causing(folder, left) as code:
            ended = attempt(case.words(folder), code)
        output = ended.stdout + ended.stderr
        if ended.returncode == 0:  # enough was left
            wrong = case.difference(folder, reference)
            assert not wrong, wrong
            return False
        assert ended.returncode == 1, f"status {ended.returncode}: {output[-1500:]}"
        one_line(output)
        case.require_survivors(folder, before)
        done(case.words(folder))
        wrong = case.difference(folder, reference)
        assert not wrong, f"again: {wrong}"
    return True


def run_all(report: Report, scratch: Path) -> None:
    """Every command in every trouble."""
    text = digits_corpus(scratch / "text", train=110, valid=10, test=10)
    data = binarize(text, scratch / "bin")
    for case in (Training(data), *cases(scratch, data)):
        reference = scratch / "reference" / case.name.replace(" ", "-")
        reference.mkdir(parents=True)
        case.prepare(reference)
        done(case.words(reference))
        for kind, (_, amounts) in TROUBLES.items():
            failures: list[str] = []
            felt = 0
            for left in amounts:
                place = scratch / f"{case.name}-{kind}-{left}".replace(" ", "-")
                with noted(failures, f"{left} left"):
                    felt += trouble(case, kind, left, place, reference)
            if not felt and not failures:
                failures.append("the trouble was never felt")
            report.add(f"{case.name}: {kind}", count=len(amounts), failures=failures, felt=felt)


def main() -> None:
    report = Report("disk", parser(__doc__).parse_args())
    with tempfile.TemporaryDirectory() as scratch:
        run_all(report, Path(scratch))
    report.end()


if __name__ == "__main__":
    main()
