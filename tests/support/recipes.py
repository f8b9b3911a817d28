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


def library(script: str, *, ok: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    return bash("-c", f'source "{RECIPES}/lib.sh"\n{script}', ok=ok, **env)


def start(*words: object) -> subprocess.Popen[bytes]:
    """Start a recipe in a process group of its own, to be killed with its forked commands."""
    programs = [] if FRESH else [str(forking.programs(os.getpid()))]
    path = ":".join([*programs, ENVIRONMENT["PATH"]])
    how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "preexec_fn": os.setpgrp}
    return subprocess.Popen(["bash", *map(str, words)], env={**ENVIRONMENT, "PATH": path}, **how)


def commands(shown: str) -> list[list[str]]:
    """Parse the commands that a recipe shows, into words."""
    return [shlex.split(line[2:]) for line in shown.splitlines() if line.startswith("+ ")]


def value(words: list[str], flag: str) -> str:
    """Return the last value of an option in a command, which is the value that fairseq uses."""
    return words[len(words) - words[::-1].index(flag)]


def trainings(word_lists: list[list[str]]) -> dict[str, list[str]]:
    """Return the words of each fairseq-train command by the folder of its model."""
    commands = (words for words in word_lists if words[0] == "fairseq-train")
    return {value(words, "--save-dir"): words for words in commands}


def dry_run(recipe: Path, folder: Path, *options: object, **environment: str) -> list[list[str]]:
    """Return the commands that a full run in ``folder`` would run, without running them."""
    words = (recipe, "--out", folder / "run", *options)
    done = bash(*words, **{"DRY_RUN": "1", "SMOKE": "0", **environment})
    assert not (folder / "run").exists()
    return commands(done.stderr)


def settings(words: list[str]) -> Any:
    """Return fairseq's configuration of a command that has ``--arch`` before its other flags."""
    return configuration(words[words.index("--arch") :])


def learning_rates(words: list[str], updates: Iterable[int]) -> dict[int, float]:
    """Return the learning rates that a command's flags give, by number of updates."""
    cfg = settings(words)
    optimizer = FairseqAdam(cfg.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    scheduler = build_lr_scheduler(cfg.lr_scheduler, optimizer)
    return {update: scheduler.step_update(update) for update in updates}
