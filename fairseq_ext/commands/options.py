"""Arguments, checks of paths, and output that several subcommands share."""

import argparse
import contextlib
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_ext.utils import files, json_files
from fairseq_ext.utils.errors import ConfigError, wrong_value

Subparsers = Any  # argparse keeps this class private
OUTPUTS = ("output", "json")
NAMED = ("system", "log")  # options whose values are NAME=FILE, with further files after commas
PICTURE = (".png", ".json")
"""Endings of a picture's files; a name that ends in .svg gives an SVG instead."""
# Files that commands read if an argument is a folder; if it is a bundle, they read all files.
READ = ("dict.*.txt", "text.json", "*.pt", "*.bin", "*.idx")


def add_generated(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "generated",
        type=Path,
        nargs="+",
        metavar="GENERATED",
        help="standard output of fairseq-generate, or generate-SUBSET.txt in its --results-path; "
        "with --num-shards, the outputs of all shards",
    )


def add_output(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, metavar=metavar, help=text)


def add_picture_output(parser: argparse.ArgumentParser) -> None:
    text = "picture to write, or OUT.svg; its numbers are written to OUT.json"
    add_output(parser, "OUT.png", text)
    parser.set_defaults(endings=PICTURE)


def add_json(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"also write {text} as JSON")


def write_json(path: Path | None, data: Any) -> None:
    """Write ``data`` as JSON to ``path``; do nothing if ``path`` is None."""
    if path is not None:
        json_files.write_json(path, data, indent=2)


def named_values(option: str, form: str, items: Sequence[str]) -> dict[str, str]:
    """Parse ``items``, the values ``NAME=VALUE`` of a repeated option, into a dict.

    Messages show ``option`` and the ``form`` of its values, such as ``NAME=FILE``.
    Raise ConfigError if a value has another form, or a name is repeated.
    """
    values: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals and value) or name in values:
            raise wrong_value(option, f"{form} with a name of its own", item)
        values[name] = value
    return values


def check_paths(args: Any) -> None:
    """Refuse a command line if an output cannot be written, or would overwrite an input.

    The arguments in :data:`OUTPUTS` are outputs; all other paths in ``args`` are inputs. A command
    that writes several files sets ``args.endings``, which replace the ending of ``--output``. A
    command that makes the folder of ``--output`` sets ``args.makes_folder``.

    Raises:
        DataError: an input would be overwritten.
        ConfigError: two outputs are one file.
        EnvironmentProblem: the folder of an output does not exist.
    """
    paths = {name: getattr(args, name, None) for name in OUTPUTS}
    outputs = {name: path for name, path in paths.items() if isinstance(path, Path)}
    written: dict[str, str] = {}
    for name, path in outputs.items():
        if files.is_special(path):
            continue
        written_paths = [path]
        if name == "output" and hasattr(args, "endings"):
            from fairseq_ext.evaluation import plots

            written_paths = [plots.with_ending(path, ending) for ending in args.endings]
        for file in written_paths:
            place, option = os.path.realpath(file), f"--{name}"
            if place in written:
                raise ConfigError(
                    f"`{option}` must be another file than {file}, which `{written[place]}` writes."
                )
            written[place] = option
    read = (path for name in vars(args) if name not in OUTPUTS for path in _read(args, name))
    files.keep_inputs(read, written)
    for name, path in outputs.items():
        if name != "output" or not getattr(args, "makes_folder", False):
            files.require_folder_of(path, f"--{name}")


def _read(args: argparse.Namespace, name: str) -> Iterator[Path]:
    """Yield the paths in the argument ``name`` and, below folders, the files that a command reads.

    A command reads all files of a bundle. In other folders, it reads the files that match the
    patterns :data:`READ`.
    """
    value = getattr(args, name)
    for path in value if isinstance(value, list) else [value]:
        if name in NAMED and isinstance(path, str):
            path = re.sub("^table:", "=", path)
            yield from map(Path, re.split(r"[=,](?:text:|table:)?", path)[1:])
        if not isinstance(path, Path):
            continue
        yield path
        # `average` may write into the folder of the run, its `--dir`.
        if os.path.isdir(path) and name != "dir":  # noqa: PTH112  # may be a long text
            is_bundle = (path / "bundle.json").is_file()
            for pattern in ("*",) if is_bundle else READ:
                yield from path.glob(pattern)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, SIGHUP and Ctrl-C end the ``with`` block without an error.

    The block must run within ``files.cleaned_up``, as every command does. There, SIGTERM raises
    KeyboardInterrupt, which this function suppresses.
    """
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        # A running server has a handler of its own for SIGTERM, but not for SIGHUP.
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    with contextlib.suppress(KeyboardInterrupt):
        yield
