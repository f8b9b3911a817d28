"""Options that the benchmarks share, and the loop over the questions of a benchmark."""

from __future__ import annotations

import argparse
import gc
import logging
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from bench import Cells
from peers import DTYPES

ALL = "all"
OPTIONS: dict[str, dict[str, Any]] = {
    "threads": {"type": int, "help": "torch threads; of several, one after another"},
    "device": {"help": "cpu or cuda"},
    "dtype": {"choices": DTYPES, "help": "of weights and activations"},
    "repeats": {"type": int, "help": "rounds that count, three at least"},
    "warmup": {"type": int, "help": "rounds before them"},
    "budget": {"type": float, "help": "seconds after which a cell stops, three rounds done"},
    "limit": {"type": float, "help": "seconds; what is slower is left out of later cells"},
    "lengths": {"type": int, "help": "tokens of a sentence, ascending"},
    "tokens": {"type": int, "help": "of a batch"},
    "layers": {"type": int, "help": "of the encoder, and of the decoder"},
    "embed_dim": {"type": int, "help": "of the model"},
    "ffn_embed_dim": {"type": int, "help": "of its feed-forward networks"},
    "heads": {"type": int, "help": "of its attention"},
    "vocabulary": {"type": int, "help": "entries of each dictionary"},
    "dropout": {"type": float, "help": "in training steps"},
    "sentences": {"type": int, "help": "that training batches are made of"},
    "batches": {"type": int, "help": "sentences, in generation"},
    "words": {"type": int, "help": "to generate for each sentence"},
}


def parser_with(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Make a parser with ``--json`` and the given :data:`OPTIONS`.

    Args:
        description: the script's docstring.
        defaults: by option; a list if it takes several values, None if the question decides (see
            :func:`filled`).
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in defaults.items():
        several = {"nargs": "+"} if isinstance(default, list) else {}
        parser.add_argument(_flag(name), default=default, **OPTIONS[name], **several)
    parser.add_argument("--json", type=Path, help="write the figures there, and pictures beside")
    return parser


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def filled(options: Namespace, defaults: dict[str, Any], question: str) -> Namespace:
    """Fill missing options from a question's defaults, and name its own ``--json`` file."""
    overrides = {name: value for name, value in vars(options).items() if value is not None}
    path = options.json
    if path is not None and options.question == ALL:
        path = path.with_name(f"{path.stem}_{question}{path.suffix}")
    return Namespace(**{**defaults, **overrides, "json": path})


def settings(options: Namespace, without: Iterable[str] = ("json",)) -> dict[str, Any]:
    """Return the options in the form that is saved with figures."""
    return {name: value for name, value in vars(options).items() if name not in without}


def begin(options: Namespace) -> None:
    """Set torch's threads, and keep fairseq's log to warnings."""
    torch.set_num_threads(options.threads)
    logging.getLogger().setLevel(logging.WARNING)


def ask(
    questions: dict[str, Callable[[Namespace], Cells]],
    options: Namespace,
    defaults: dict[str, dict[str, Any]],
    draw: Callable[[str, Cells, Namespace], None],
) -> None:
    """Measure, print and write the question that the options name, or all.

    Args:
        questions: functions that measure, by name.
        options: with ``question``, ``device``, ``dtype`` and ``threads``.
        defaults: each question's values for options that were not given.
        draw: makes a question's pictures, beside ``--json`` if given.
    """
    begin(options)
    for question in questions if options.question == ALL else [options.question]:
        its = filled(options, defaults[question], question)
        threads = torch.get_num_threads()
        print(f"\n== {question} on {its.device}, {its.dtype}, {threads} threads")
        cells = questions[question](its)
        cells.save(its.json, settings(its))
        if its.json is not None:
            draw(question, cells, its)
        gc.collect()
