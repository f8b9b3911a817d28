"""Run recipes like a user, list the commands that they would run, and parse these like fairseq."""

import os
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from fairseq.optim.adam import FairseqAdam
from fairseq.optim.lr_scheduler import build_lr_scheduler

from tests.support import forking
from tests.support.harness import BIN, FRESH, REPO
from tests.support.models import configuration

RECIPES = REPO / "recipes"

# A clean shell: none of our settings, no terminal, the C locale, this environment first in PATH.
ENVIRONMENT = {"PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C"}
ENVIRONMENT |= {"SMOKE": "1", "OMP_NUM_THREADS": "1"}
if "PYTHONPATH" in os.environ:  # another checkout than the installed one
    ENVIRONMENT["PYTHONPATH"] = os.environ["PYTHONPATH"]


def bash(
    *words: object, ok: bool = True, fresh: bool = FRESH, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a recipe; its commands are forks of one process unless ``fresh`` is true."""
    variables = {**ENVIRONMENT, **environment}
    real = Path(str(words[0])).suffix == ".sh" and environment.get("DRY_RUN") != "1"
    if real and not fresh and "PATH" not in environment:
        variables["PATH"] = f"{forking.programs(os.getpid())}:{variables['PATH']}"
    how = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 600}
    done = subprocess.run(["bash", *map(str, words)], env=variables, **how)
    transcript = f"{words}\nstatus {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert (done.returncode == 0) if ok else (done.returncode > 0), transcript
    assert "Traceback" not in done.stderr, transcript
    return done


def check_repeat(first: subprocess.CompletedProcess[str], *words: object) -> None:
    """Run a finished recipe again: it must train nothing, and print the same report again."""
    repeat = bash(*words)
    assert repeat.stdout
    assert first.stdout.endswith(repeat.stdout)
    assert "fairseq-train" not in repeat.stderr


def check_pictures(folder: Path, *names: str) -> None:
    """Require PNG files with these names in a folder."""
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def library(script: str, *, ok: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    return bash("-c", f'source "{RECIPES}/lib.sh"\n{script}', ok=ok, **env)


def start(*words: object, **how: Any) -> subprocess.Popen[Any]:
    """Start a recipe in a process group of its own, to be killed with its forked commands."""
    programs = [] if FRESH else [str(forking.programs(os.getpid()))]
    path = ":".join([*programs, ENVIRONMENT["PATH"]])
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **how}
    variables = {**ENVIRONMENT, "PATH": path}
    command = ["bash", *map(str, words)]
    return subprocess.Popen(command, env=variables, preexec_fn=os.setpgrp, **streams)


class Command(list[str]):
    """The words of a command that a recipe shows."""

    def value(self, flag: str) -> str:
        """Return the last value of an option, which is the value that fairseq uses."""
        return self[len(self) - self[::-1].index(flag)]

    def values(self, *flags: str) -> list[str]:
        return [self.value(flag) for flag in flags]

    def settings(self) -> Any:
        """Return fairseq's configuration; ``--arch`` must stand before the other flags."""
        return configuration(self[self.index("--arch") :])

    def learning_rates(self, updates: Iterable[int]) -> dict[int, float]:
        """Return the learning rates that the flags give, by number of updates."""
        cfg = self.settings()
        optimizer = FairseqAdam(cfg.optimizer, [torch.nn.Parameter(torch.zeros(1))])
        scheduler = build_lr_scheduler(cfg.lr_scheduler, optimizer)
        return {update: scheduler.step_update(update) for update in updates}


class Commands(list[Command]):
    """All commands that a recipe shows."""

    def calls(self, *start: str) -> list[Command]:
        """Return the commands that begin with some words."""
        return [words for words in self if words[: len(start)] == [*start]]

    def trainings(self) -> dict[str, Command]:
        """Return each fairseq-train command by the folder of its model."""
        return {words.value("--save-dir"): words for words in self.calls("fairseq-train")}


def commands(shown: str) -> Commands:
    """Parse the commands that a recipe shows."""
    lines = (line[2:] for line in shown.splitlines() if line.startswith("+ "))
    return Commands(Command(shlex.split(line)) for line in lines)


def dry_run(recipe: Path, folder: Path, *options: object, **environment: str) -> Commands:
    """Return the commands that a full run in ``folder`` would run, without running them."""
    words = (recipe, "--out", folder / "run", *options)
    done = bash(*words, **{"DRY_RUN": "1", "SMOKE": "0", **environment})
    assert not (folder / "run").exists()
    return commands(done.stderr)
