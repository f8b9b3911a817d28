"""``kill -9`` inside preprocessing, averaging, bundling, corpora and a recipe.

After each kill, nothing half-written may look whole; the same command, started again, must end
well with the result of an undisturbed one.
"""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fairseq_ext.corpora import SPLITS
from tests.soak import forks
from tests.soak.cases import Case, cases, contents
from tests.soak.kills import difference
from tests.soak.report import Report, noted, parser, say
from tests.support.harness import REPO, binarize, digits_corpus, run
from tests.support.killed import at_operation

CORPUS = "iwslt14_de_en"

Check = Callable[[Path, dict[str, str], dict[str, str]], None]


def left_behind(folder: Path) -> int:
    """How many temporary files and folders a killed command has left."""
    names = [path.name for path in folder.rglob("*")]
    return sum(name.startswith(".partial-") or name.endswith(".tmp") for name in names)


def soak_one(report: Report, case: Case, check: Check, scratch: Path, kills: int) -> None:
    """Kill a command at drawn moments; ``check`` what is there then: folder, before, expected."""
    draw = random.Random(f"{report.args.seed} {case.name}")
    reference, counted, log = scratch / "whole", scratch / "operations", scratch / "log"
    case.prepare(reference)
    before, began = contents(reference), time.monotonic()
    hook = at_operation(-1, reference, counted)
    assert forks.run(case.words(reference), log, first=hook) == 0, log.read_text()[-1500:]
    seconds, operations = time.monotonic() - began, int(counted.read_text())
    expected = contents(reference)
    assert expected != before
    failures: list[str] = []
    done = littered = 0
    while done < kills:
        folder = scratch / f"killed{done}"
        case.prepare(folder)
        if draw.random() < 0.5:
            child = forks.start(case.words(folder), log)
            time.sleep(draw.uniform(0.02, 0.98) * seconds)
            status = forks.kill(child)
        else:
            hook = at_operation(draw.randint(1, operations), folder)
            status = forks.run(case.words(folder), log, first=hook)
        if status != -9:  # done before its moment came
            shutil.rmtree(folder)
            continue
        done += 1
        with noted(failures, f"kill {done}"):
            check(folder, before, expected)
            littered += left_behind(folder) > 0
            if contents(folder) != expected:  # not killed after its work was done
                again = scratch / f"again{done}"
                assert forks.run(case.words(folder), again) == 0, again.read_text()[-600:]
            assert contents(folder) == expected, "another result"
        shutil.rmtree(folder)
    report.add(case.name, count=kills, failures=failures, left_temporary_files=littered)


def writing(report: Report, scratch: Path, data: Path, kills: int) -> None:
    """Preprocessing, and commands that write one file, some in the place of an older one."""
    for number, case in enumerate(cases(scratch, data)):
        if case.name == "fairseq-ext plot":  # two files, which may be of two runs
            continue

        def check(
            folder: Path, before: dict[str, str], expected: dict[str, str], case: Case = case
        ) -> None:
            if all((folder / name).exists() for name in case.outputs):
                present = contents(folder)
                assert present in (before, expected), f"torn: {sorted(present)}"

        place = scratch / str(number)
        place.mkdir()
        soak_one(report, case, check, place, kills)


def whole_files(folder: Path, before: dict[str, str], expected: dict[str, str]) -> None:
    """Every file of a corpus that is there is whole."""
    ready = ("text/", "bpe/", "manifest")
    present = {name: sha for name, sha in contents(folder).items() if name.startswith(ready)}
    torn = [name for name, sha in present.items() if expected.get(name) != sha]
    assert not torn, f"torn: {torn}"


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

    case = Case("corpus of the literature", words, ())
    soak_one(report, case, whole_files, place, kills)


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
        ours, theirs = contents(killed), contents(undisturbed)
        assert ours.keys() == theirs.keys()
        for name in ("hyp.de", "bpe/codes", "bin/train.en-de.en.bin"):
            assert ours[name] == theirs[name], name
        wrong = difference(killed / "checkpoints", undisturbed / "checkpoints")
        assert not wrong, wrong
    report.add("recipes/quickstart.sh", count=done, failures=failures)


def _stages(folder: Path) -> str:
    return " ".join(sorted(path.name for path in (folder / ".stages").glob("*"))) or "none"


PARTS = {"writing": writing, "corpora": corpora, "recipes": recipes}
"""In the order in which they are run."""


def main() -> None:
    options = parser(__doc__)
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
