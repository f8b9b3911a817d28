"""Every hostile file through every command, each in a process of its own; what came of it.

``python -m tests.hostile.grid --json docs/results/hostile.json`` makes the hostile files.
For each pair of a file and a command it forks a process, from a process that has already loaded
fairseq and this plugin, and it counts the outcomes.
A *canary* is a file that the hostile code would make.
"""

import argparse
import functools
import gc
import importlib
import json
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, NoReturn

from tests.hostile.commands import BUNDLES_ALONE, COMMANDS, MODULES, PAUSES, run, words_of
from tests.support.harness import binarize, digits_corpus

CPU_SECONDS = 20
WALL_SECONDS = 300  # on a busy machine
MEMORY = 16 << 30  # bytes of address space
BOMBS = ("bomb of lists", "OmegaConf bomb")  # each takes seconds to be refused


@dataclass(frozen=True)
class Run:
    """One command on one file.

    Attributes:
        file, command: their names.
        outcome: ``refused`` in one line with status 1, ``used`` with status 0, or one of the
            faults ``executed``, ``hang``, ``traceback``, ``wordy`` (no line of ours, or several).
        said: the line, or the end of what was said.
    """

    file: str
    command: str
    outcome: str
    said: str


def make_files(folder: Path, data: Path, canary: Path) -> dict[str, Path]:
    """Write every hostile file; by name."""
    from tests.hostile import bases, pickles, settings

    make, text = settings.make(data), settings.evil(canary)
    base = make("lstm", "cfg")
    bases.bundled(folder / "bundle", data)
    sources = {
        ".pt": (
            *(pickles.pickled(base, canary), pickles.formats(base, canary)),
            *(pickles.archives(base, canary), pickles.bombs(base), pickles.nodes(base, canary)),
            *(settings.carriers(make, text), settings.names(make, canary)),
        ),
        ".zip": (settings.bundles(folder / "bundle", text),),
    }
    paths: dict[str, Path] = {}
    for ending, generators in sources.items():
        for generator in generators:
            for name, content in generator:
                path = folder / f"{len(paths):03d}{ending}"
                path.write_bytes(content)
                assert name not in paths, name
                paths[name] = path
    return paths


def judged(process: int, stream: IO[str], canary: Path) -> tuple[str, str]:
    """The outcome of a process whose output goes to a file, and what it said."""
    status = _waited(process)
    stream.seek(0)
    output = stream.read()
    lines = [line for line in output.splitlines() if line.startswith("fairseq-ext: error: ")]
    last = (lines or output.splitlines()[-1:] or [""])[0][:500]
    if canary.exists():
        canary.unlink()
        return "executed", last
    if status is None or status == -signal.SIGXCPU:
        return "hang", last
    if "Traceback (most recent call last)" in output or status not in (0, 1):
        return "traceback", f"status {status}: {output[-1500:]}"
    if status == 0:
        return "used", last
    return ("refused" if len(lines) == 1 else "wordy"), last


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _waited(process: int) -> int | None:
    """The status of a process as ``subprocess`` gives it, or None if it had to be ended."""
    end = time.monotonic() + WALL_SECONDS
    while time.monotonic() < end:
        child, status = os.waitpid(process, os.WNOHANG)
        if child:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def runs(files: dict[str, Path], command: str, data: Path, canary: Path) -> Iterator[Run]:
    """Each file through one command.

    The command runs up to where it reads the file, which is most of its time, once; there it forks
    for each file, and each fork goes on to the command's end.
    """
    for ending in (".zip",) if command in BUNDLES_ALONE else (".pt", ".zip"):
        inputs = {name: path for name, path in files.items() if path.suffix == ending}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"model{ending}")
            words = words_of(command, path, data, Path(folder))
            yield from _forked(words, inputs, path, command, canary)


def _forked(
    words: list[str], files: dict[str, Path], path: Path, command: str, canary: Path
) -> Iterator[Run]:
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reader)
        _command(words, functools.partial(_for_each, files, path, writer, canary), command)
    os.close(writer)
    waiting = set(files)
    with os.fdopen(reader) as results:
        for line in results:
            name, outcome, printed = json.loads(line)
            waiting.remove(name)
            yield Run(name, command, outcome, printed)
    os.waitpid(process, 0)
    assert not waiting, f"{command} ended before it read {len(waiting)} files"


def _command(words: list[str], pause: Callable[[], None], name: str) -> NoReturn:
    """Run a command that pauses before it reads the file, as Python runs a program."""
    status = 1
    try:
        if name in PAUSES:
            module, attribute = PAUSES[name].split(":")
            owner = importlib.import_module(module)
            setattr(owner, attribute, _pausing(getattr(owner, attribute), pause))
        else:
            pause()
        run(words)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _pausing(original: Callable, pause: Callable[[], None]) -> Callable:
    @functools.wraps(original)
    def function(*arguments: object, **options: object) -> object:
        pause()
        return original(*arguments, **options)

    return function


def _for_each(files: dict[str, Path], path: Path, writer: int, canary: Path) -> None:
    """Fork for each file and write what came of it; it returns in the forks alone."""
    for name, source in files.items():
        shutil.copyfile(source, path)
        with tempfile.TemporaryFile("w+", errors="replace") as stream:
            process = os.fork()
            if process == 0:
                for number in (1, 2):
                    os.dup2(stream.fileno(), number)
                _limit()
                return
            result = [name, *judged(process, stream, canary)]
        os.write(writer, (json.dumps(result) + "\n").encode())
    os._exit(0)


def load() -> None:
    """Load fairseq, all its commands and the plugin, from which the others fork."""
    import fairseq_ext

    for name in MODULES.values():
        importlib.import_module(name)

    fairseq_ext.register()
    logging.root.setLevel(logging.WARNING)
    for name in ("demo.systems", "model.write", "muse.commands.plot_gates"):
        importlib.import_module(f"fairseq_ext.{name}")
    gc.collect()
    gc.freeze()  # or collecting would copy all of this memory in each fork


def summary(files: dict[str, Path], names: list[str], all_runs: list[Run]) -> dict[str, object]:
    """The counts, and every run that is none of ``refused`` and ``used``."""
    counts = {
        name: Counter(run.outcome for run in all_runs if run.command == name) for name in names
    }
    total = sum(counts.values(), Counter())
    return {
        "files": len(files),
        "commands": len(names),
        "runs": len(all_runs),
        "executed": total["executed"],
        "hangs": total["hang"],
        "tracebacks": total["traceback"],
        "more or less than one line": total["wordy"],
        "refused": total["refused"],
        "used": total["used"],
        "by command": counts,
        "files used": sorted({run.file for run in all_runs if run.outcome == "used"}),
        "faults": [asdict(run) for run in all_runs if run.outcome not in ("refused", "used")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="a binarized corpus from `src` to `tgt` (default: one is made)")
    add("--commands", nargs="+", metavar="NAME", help="only those whose name contains one of these")
    add("--files", nargs="+", metavar="NAME", help="only those whose name contains one of these")
    add("--no-bombs", action="store_true", help=f"none of {', '.join(BOMBS)}")
    add("--json", type=Path, help="where to write the outcome")
    args = parser.parse_args()
    load()
    names = [n for n in COMMANDS if not args.commands or any(c in n for c in args.commands)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = args.data or binarize(digits_corpus(place / "text", train=60), place / "bin")
        canary, hostile = place / "canary" / "sang", place / "hostile"
        canary.parent.mkdir()
        hostile.mkdir()
        files = make_files(hostile, data, canary)
        if args.files:
            files = {n: p for n, p in files.items() if any(f in n for f in args.files)}
        if args.no_bombs:
            files = {n: p for n, p in files.items() if not n.startswith(BOMBS)}
        all_runs = []
        for name in names:
            for run in runs(files, name, data, canary):
                print(f"{run.outcome:10}{run.command} | {run.file} | {run.said}", file=sys.stderr)
                all_runs.append(run)
        outcome = json.loads(json.dumps(summary(files, names, all_runs)).replace(folder, "FOLDER"))
    if args.json is None:
        print(json.dumps(outcome, indent=1))
        return
    from benchmarks import bench

    bench.save(args.json, title="Hostile files in every command", **outcome)


if __name__ == "__main__":
    main()
