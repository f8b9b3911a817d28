"""Helpers that the tests share: the real fairseq commands as processes, and tiny corpora.

Nothing here imports fairseq, so a test that only runs commands starts at once.
"""

import contextlib
import io
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support import forking

REPO = Path(__file__).resolve().parents[2]
USER_DIR = REPO / "user_dir"
BIN = Path(sys.executable).parent
FRESH = bool(os.environ.get("FRESH_COMMANDS"))  # run every command in a new interpreter


def run(
    *command: object,
    ok: bool = True,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float = 600,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command (a console script's name or a path, then arguments) with one thread.

    Scripts of fairseq, of this package and in ``recipes/`` run in forks (forking.py). With
    ``environment`` variables or ``FRESH_COMMANDS``, they run in a new interpreter. If ``ok``, the
    exit status must be 0, otherwise above 0, so that no signal has ended the command.
    """
    words = [str(word) for word in command]
    interpreted = words[0] in ("python", sys.executable)
    own_script = interpreted and Path(words[1]).is_relative_to(REPO / "recipes")
    if (own_script or words[0].startswith("fairseq-")) and not environment and not FRESH:
        words[0] = forked(Path(words[0]).name)
    elif (BIN / words[0]).exists():
        words[0] = str(BIN / words[0])
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    if f"/{forking.PREFIX}" in words[0] and forking.can_run(words):
        program, folder = str(BIN / Path(words[0]).name), cwd or Path.cwd()
        result = forking.call([program, *words[1:]], stdin or "", timeout, folder, variables)
        done = subprocess.CompletedProcess(words, *result)
    else:
        how = {"cwd": cwd, "capture_output": True, "text": True, "timeout": timeout}
        done = subprocess.run(words, input=stdin or "", env=variables, **how)
    report = f"{' '.join(words)}\nstatus {done.returncode}\n{done.stdout}\n{done.stderr}"
    if ok:
        assert done.returncode == 0, report
    else:
        assert done.returncode > 0, report
    return done


def forked(name: str) -> str:
    """Return the path of a program that runs in a fork, or with ``FRESH`` in a new interpreter."""
    return str(BIN / name if FRESH else forking.programs(os.getpid()) / name)


def python(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python script, ``-m`` a module or ``-c`` code, in a fork that has imported fairseq."""
    return run(forked("python"), *words, **how)


def after(code: str, *words: object) -> list[str]:
    """Return a command that runs ``code`` (as in `killed.py`) and then ``words`` in a fork."""
    script = Path(__file__).with_name("killed.py")
    return [forked("python"), str(script), code, str(BIN / str(words[0])), *map(str, words[1:])]


SESSION = "os.setsid()\nPath('leader').write_text(str(os.getpid()))"
"""Code for `after`: begin a session, as a terminal does, so that a signal can go to its group."""
FORKING = "import torch.multiprocessing as m; "
FORKING += "m.spawn = partial(m.start_processes, start_method='fork')"
"""Code for `after`: let processes of a job be forks, so that they import nothing again.

Forks inherit the first process's handlers of signals; spawned processes do not.
"""


def start(*words: object, env: dict[str, str] | None = None, **how: Any) -> subprocess.Popen[Any]:
    """Start a command with one thread; its output is lost unless ``how`` says otherwise."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **how}
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.Popen([BIN / str(words[0]), *map(str, words[1:])], env=variables, **streams)


def wait_for(
    appears: Callable[[], object], process: subprocess.Popen, seconds: float = 900
) -> None:
    """Wait until ``appears`` returns true, which must happen before ``process`` ends."""
    end = time.monotonic() + seconds
    while not appears():
        assert process.poll() is None, "the process ended before"
        assert time.monotonic() < end, f"nothing within {seconds:.0f} s"
        time.sleep(0.005)


def interrupted(
    words: Sequence[object], folder: Path, where: str, number: signal.Signals, *, group: bool
) -> tuple[int, str, int]:
    """Send a signal to a command paused by `faulty`; return its status, output and process group.

    If ``group``, all processes of the command get the signal, as on Ctrl-C in a terminal.
    """
    # These tests may run in the background or under nohup, where the signal is ignored.
    # Processes of a job are really spawned: forks would have the first one's handlers of signals.
    code = f"signal.signal({number}, signal.SIG_DFL)\n{SESSION}"
    process = start(
        *after(code, *words),
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": folder},
        env={"PAUSE": where},
    )
    wait_for((folder / "paused").exists, process, 120)
    leader = int((folder / "leader").read_text())
    (os.killpg if group else os.kill)(leader, number)
    output = process.communicate(timeout=60)[0]
    return process.returncode, output, leader


def spawned(parent: int) -> list[int]:
    """List the processes that ``multiprocessing`` has spawned from ``parent``, oldest first."""
    # Linux lists them in this order. Process ids would not do: they begin again at a limit.
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    commands = {}
    for pid in children:
        with suppress(FileNotFoundError):  # it has ended meanwhile
            commands[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return [pid for pid, command in commands.items() if b"spawn_main" in command]


def fairseq(name: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run ``fairseq-<name>`` with our plugin."""
    if name == "preprocess":
        return run("fairseq-preprocess", "--user-dir", USER_DIR, *arguments, **options)
    return run(f"fairseq-{name}", *arguments, "--user-dir", USER_DIR, **options)


def ended(*words: object, stdin: bytes = b"") -> tuple[object, str, str]:
    """Run fairseq-ext in this process; return exit status, output and errors."""
    import pytest

    from fairseq_ext import cli

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", newline=""), io.StringIO()
    with (
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stopped,
    ):
        cli.main([str(word) for word in words])
    out.flush()
    return stopped.value.code, out.buffer.getvalue().decode(), err.getvalue()


def command(*words: object, stdin: bytes = b"") -> str:
    """Run fairseq-ext in this process; it must succeed; return its output."""
    status, output, errors = ended(*words, stdin=stdin)
    assert status == 0, errors
    return output


def error_line(*words: object, stdin: bytes = b"") -> str:
    """Run fairseq-ext in this process; it must fail without output; return its error."""
    status, output, errors = ended(*words, stdin=stdin)
    assert status in (1, 2)
    assert output == ""
    assert "Traceback" not in errors
    assert errors.count("error: ") == 1
    line = errors.splitlines()[-1]
    assert re.match(r"fairseq-ext[a-z -]*: error: ", line)
    return line


def leaves_no_trace(folder: Path, message: str, *words: object, stdin: bytes = b"") -> None:
    """Run fairseq-ext in a folder; it must fail with the message, and change no file."""
    import pytest

    before = contents_below(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert message in error_line(*words, stdin=stdin)
    assert contents_below(folder) == before


def contents_below(folder: Path) -> dict[Path, bytes | None]:
    """Map each path below a folder to the file's content, or to None if it is no file."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def write_lines(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def write_sides(folder: Path, texts: Mapping[str, list[str]]) -> Path:
    """Write ``{train,valid,test}.SIDE``, each side with the same lines in every split."""
    for split in ("train", "valid", "test"):
        for side, lines in texts.items():
            write_lines(folder / f"{split}.{side}", lines)
    return folder


def read_lines(path: Path) -> list[str]:
    """Read the lines of a file, which end at line feeds only."""
    text = path.read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n") if text else []


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def digits_corpus(
    folder: Path,
    transform: Callable[[list[str]], list[str]] = list,
    *,
    train: int = 500,
    valid: int = 50,
    test: int = 50,
    max_len: int = 9,
    seed: int = 1,
) -> Path:
    """Write ``{train,valid,test}.{src,tgt}``: random digits, and the result of ``transform``.

    ``transform=list`` is the copy task, ``transform=sorted`` the sorting task.
    """
    generator = random.Random(seed)
    for split, size in {"train": train, "valid": valid, "test": test}.items():
        source = [
            [str(generator.randrange(10)) for _ in range(generator.randint(1, max_len))]
            for _ in range(size)
        ]
        write_lines(folder / f"{split}.src", [" ".join(words) for words in source])
        write_lines(folder / f"{split}.tgt", [" ".join(transform(words)) for words in source])
    return folder


def preprocess(
    text: Path, destination: Path, *extra: object, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run ``fairseq-preprocess`` on a corpus of `digits_corpus`."""
    words = ("--source-lang", "src", "--target-lang", "tgt", "--destdir", destination)
    prefixes = [
        part for name in ("train", "valid", "test") for part in (f"--{name}pref", text / name)
    ]
    return fairseq("preprocess", *words, *prefixes, *extra, **options)


def binarize(text: Path, destination: Path, *extra: object) -> Path:
    """Run ``fairseq-preprocess`` on a corpus of `digits_corpus`; return the new folder."""
    preprocess(text, destination, *extra)
    return destination


def hypotheses(generated: str) -> list[str]:
    """Return the best hypotheses in ``fairseq-generate``'s output, in corpus order."""
    best: dict[int, str] = {}
    for line in generated.splitlines():
        if line.startswith("H-"):
            name, _, text = line.split("\t")
            best.setdefault(int(name[2:]), text)
    return [best[index] for index in sorted(best)]


def refused(done: subprocess.CompletedProcess[str], *parts: object) -> None:
    """Require that a command ended with status 1 and exactly one message, which has ``parts``."""
    output = done.stdout + done.stderr
    messages = [line for line in output.splitlines() if line.startswith("fairseq-ext: error: ")]
    assert done.returncode == 1, output
    assert len(messages) == 1, output
    assert "Traceback" not in output
    for part in parts:
        assert str(part) in messages[0]


def in_a_fork(work: Callable[[], Any], at_the_fork: AbstractContextManager | None = None) -> Any:
    """Return what ``work`` returns in a child that is forked in the context ``at_the_fork``."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    forks = multiprocessing.get_context("fork")
    child = forks.Process(target=lambda: sender.send(work()))
    with at_the_fork or nullcontext():
        child.start()
    try:
        assert receiver.poll(60), "the child hangs"
        return receiver.recv()
    finally:
        child.kill()
        child.join()
