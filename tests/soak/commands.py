"""``kill -9`` inside preprocessing, averaging, bundling, corpora and a recipe.

After each kill, nothing half-written may look whole; the same command, started again, must end
well with the result of an undisturbed one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairseq_ext.corpora import SPLITS
from tests.soak import dying, forks
from tests.soak.kills import BMT, difference
from tests.soak.report import Report, noted, parser, say
from tests.support.harness import REPO, USER_DIR, binarize, digits_corpus, run
from tests.support.trainings import TRAINING

CORPUS = "iwslt14_de_en"
NOT_COMPARED = (".log", ".pt", ".png", ".svg")  # times, pickled paths, drawings with dates

Words = Callable[[Path], list[object]]


def contents(folder: Path, ignore: tuple[str, ...] = NOT_COMPARED) -> dict[str, str]:
    """Checksums of the files below a folder, but hidden ones and those that vary."""
    return {
        str(path.relative_to(folder)): checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not path.name.endswith(ignore)
    }


def checksum(path: Path) -> str:
    """SHA-256 of what a file says: safetensors writes its names in any order."""
    content = path.read_bytes()
    if path.suffix == ".safetensors" and content[8:9] == b"{":
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.dumps(json.loads(content[8:end]), sort_keys=True)
        content = header.encode() + content[end:]
    return hashlib.sha256(content).hexdigest()


def left_behind(folder: Path) -> int:
    """How many temporary files and folders a killed command has left."""
    names = [path.name for path in folder.rglob("*")]
    return sum(name.startswith(".partial-") or name.endswith(".tmp") for name in names)


# ---- what looks whole after a kill ---------------------------------------------------------------


def old_or_new(folder: Path, expected: dict[str, str]) -> None:
    """The output is the old file or the new one."""
    present = contents(folder, ())
    old = hashlib.sha256(b"old").hexdigest()
    assert set(present.values()) <= {*expected.values(), old}, (
        "a torn file is at the output's place"
    )
    assert len(present) == 1, sorted(present)


def whole_or_absent(folder: Path, expected: dict[str, str]) -> None:
    """The output, which replaces nothing, is whole if it is there."""
    present = contents(folder, ())
    assert present.items() <= expected.items(), sorted(present)


def usable_only_if_whole(folder: Path, expected: dict[str, str]) -> None:
    """A data folder with both dictionaries, which fairseq-train would accept, is whole."""
    present = contents(folder)
    if {"dict.src.txt", "dict.tgt.txt"} <= set(present):
        assert present == expected, (
            f"differs in {sorted(set(present.items()) ^ set(expected.items()))}"
        )


def whole_files(folder: Path, expected: dict[str, str]) -> None:
    """Every file of a corpus that is there is whole."""
    ready = ("text/", "bpe/", "manifest")
    present = {name: sha for name, sha in contents(folder).items() if name.startswith(ready)}
    torn = [name for name, sha in present.items() if expected.get(name) != sha]
    assert not torn, f"torn: {torn}"


# ---- one command ---------------------------------------------------------------------------------


def soak_one(
    report: Report,
    name: str,
    words: Words,
    check: Callable[[Path, dict[str, str]], None],
    scratch: Path,
    kills: int,
    prepare: Callable[[Path], object] = lambda folder: folder.mkdir(),
) -> None:
    """Kill a command at drawn moments; ``words`` gives it for an output folder."""
    draw = random.Random(f"{report.args.seed} {name}")
    reference, counted = scratch / "whole", scratch / "operations"
    prepare(reference)
    began = time.monotonic()
    hook = dying.at_operation(-1, reference, counted)
    status = forks.run(words(reference), scratch / "log", first=hook)
    assert status == 0, (scratch / "log").read_text()[-1500:]
    seconds, operations = time.monotonic() - began, int(counted.read_text())
    ignore = () if check in (old_or_new, whole_or_absent) else NOT_COMPARED
    expected = contents(reference, ignore)
    assert expected
    failures: list[str] = []
    done = littered = 0
    while done < kills:
        folder = scratch / f"killed{done}"
        prepare(folder)
        if draw.random() < 0.5:
            child = forks.start(words(folder), scratch / "log")
            time.sleep(draw.uniform(0.02, 0.98) * seconds)
            status = forks.kill(child)
        else:
            hook = dying.at_operation(draw.randint(1, operations), folder)
            status = forks.run(words(folder), scratch / "log", first=hook)
        if status != -9:  # done before its moment came
            shutil.rmtree(folder)
            continue
        done += 1
        with noted(failures, f"kill {done}"):
            check(folder, expected)
            littered += left_behind(folder) > 0
            if contents(folder, ignore) != expected:  # not killed after its work was done
                status = forks.run(words(folder), scratch / f"again{done}")
                assert status == 0, (scratch / f"again{done}").read_text()[-600:]
            assert contents(folder, ignore) == expected, "another result"
        shutil.rmtree(folder)
    report.add(name, count=kills, failures=failures, left_temporary_files=littered)


def preprocessing(report: Report, scratch: Path, data: Path, kills: int) -> None:
    """With one process and with two."""
    text = data.parent / "text"
    for workers in (1, 2):

        def words(folder: Path, workers: int = workers) -> list[object]:
            return [
                *("fairseq-preprocess", "--user-dir", USER_DIR, "--workers", workers),
                *("--source-lang", "src", "--target-lang", "tgt", "--destdir", folder),
                *("--trainpref", text / "train", "--validpref", text / "valid"),
                *("--testpref", text / "test"),
            ]

        place = scratch / f"preprocess{workers}"
        place.mkdir()
        name = f"fairseq-preprocess, {workers} process{'es' * (workers > 1)}"
        soak_one(report, name, words, usable_only_if_whole, place, kills)


def writing(report: Report, scratch: Path, data: Path, kills: int) -> None:
    """Commands that write one file, in the place of an older one."""
    run_words = (*TRAINING, *BMT, "--max-update", 21, "--save-interval-updates", 7)
    trained = scratch / "trained"
    words = ("fairseq-train", data, *run_words, "--save-dir", trained, "--user-dir", USER_DIR)
    assert forks.run(words, scratch / "log") == 0, (scratch / "log").read_text()[-1500:]
    last = trained / "checkpoint_last.pt"

    def with_an_old_file(name: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            folder.mkdir()
            (folder / name).write_bytes(b"old")

        return prepare

    for name, output, command in (
        ("fairseq-ext average", "average.pt", ["average", "--inputs", last, last]),
        ("fairseq-ext bundle", "bundle.zip", ["bundle", last, "--data", data]),
        ("fairseq-ext describe --json", "report.json", None),
    ):
        place = scratch / name.split()[1]
        place.mkdir()

        def attempt(folder: Path, output: str = output, command: Any = command) -> list[object]:
            if command is None:
                bundle = scratch / "bundle" / "whole" / "bundle.zip"
                return ["fairseq-ext", "describe", bundle, "--json", folder / output]
            return ["fairseq-ext", *command, "-o", folder / output]

        if output == "bundle.zip":
            soak_one(report, name, attempt, whole_or_absent, place, kills)
        else:
            soak_one(report, name, attempt, old_or_new, place, kills, with_an_old_file(output))


def corpora(report: Report, scratch: Path, _: Path, kills: int) -> None:
    """``fairseq-ext corpus`` on archives of the official form."""
    pairs, mirror, place = scratch / "pairs", scratch / "mirror", scratch / "corpora"
    place.mkdir()
    run("fairseq-ext", "corpus", "tatoeba", "--sample", "400,20,20", "--out", pairs)
    for split in SPLITS:  # CORPUS has German; any text will do
        (pairs / f"{split}.es").rename(pairs / f"{split}.de")
    archives = REPO / "preprocess" / "smoke_archives.py"
    run("python", archives, "--corpus", CORPUS, "--pairs", pairs, "--out", mirror)

    def words(folder: Path) -> list[object]:
        options = ("--mirror", mirror, "--workers", 1, "--bpe", 100, "--any-counts")
        return ["fairseq-ext", "corpus", CORPUS, "--out", folder, *options]

    soak_one(report, "corpus of the literature", words, whole_files, place, kills)


def recipes(report: Report, scratch: Path, _: Path, limit: int) -> None:
    """``recipes/quickstart.sh`` as its own processes, killed with all its children."""
    draw, failures, kills = random.Random(report.args.seed), [], min(limit, 5)

    def start(folder: Path) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", REPO / "recipes" / "quickstart.sh", "--out", folder],
            stdout=subprocess.DEVNULL,
            stderr=(scratch / f"{folder.name}.log").open("a"),
            env={**os.environ, "SMOKE": "1"},
            start_new_session=True,
        )

    began, undisturbed, killed = time.monotonic(), scratch / "whole", scratch / "killed"
    status = start(undisturbed).wait()
    assert status == 0, (scratch / "whole.log").read_text()[-1500:]
    seconds = time.monotonic() - began
    done = 0
    with noted(failures, "recipe"):
        while done < kills:
            process = start(killed)
            try:
                status = process.wait(draw.uniform(0.1, 1.2) * seconds / 2)
                assert status == 0, (scratch / "killed.log").read_text()[-1500:]
                break
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                done += 1
                say(f"recipe: kill {done}, stages done: {_stages(killed)}")
        assert start(killed).wait() == 0, (scratch / "killed.log").read_text()[-1500:]
        compared = [sorted(contents(folder).items()) for folder in (killed, undisturbed)]
        assert _names(compared[0]) == _names(compared[1])
        for name in ("hyp.de", "bpe/codes", "bin/train.en-de.en.bin"):
            assert dict(compared[0])[name] == dict(compared[1])[name], name
        wrong = difference(killed / "checkpoints", undisturbed / "checkpoints")
        assert not wrong, wrong
    report.add("recipes/quickstart.sh", count=done, failures=failures)


def _names(compared: Iterable[tuple[str, str]]) -> list[str]:
    return [name for name, _ in compared]


def _stages(folder: Path) -> str:
    return " ".join(sorted(path.name for path in (folder / ".stages").glob("*"))) or "none"


PARTS = {
    "writing": writing,
    "preprocessing": preprocessing,
    "corpora": corpora,
    "recipes": recipes,
}
"""In the order in which they are run."""


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=10, metavar="N", help="of each command")
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these")
    args = options.parse_args()
    report = Report("commands", args, keep=len(args.only) < len(PARTS))
    forks.preload()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        data = binarize(digits_corpus(scratch / "text", train=110, valid=10), scratch / "bin")
        for name in args.only:
            place = scratch / name
            place.mkdir()
            PARTS[name](report, place, data, args.kills)
    report.end()


if __name__ == "__main__":
    main()
