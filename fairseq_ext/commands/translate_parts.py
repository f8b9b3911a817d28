"""``fairseq-ext translate --parts``: large texts in parts, with workers side by side."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.commands.text_options import TEXT_FLAGS
from fairseq_ext.utils.errors import ConfigError

if TYPE_CHECKING:
    from fairseq_ext.decoding.parts import Folder, Writes
    from fairseq_ext.text.parts import Part

PART_LINES = 10_000
# Options that do not change the translations or may differ between workers: devices, memory, paths,
# and --skip-long, without which a part with lines that are too long is not made at all.
ELSEWHERE = {
    *("run", "data", "path", "input", "output", "json"),
    *("parts", "part_lines", "shard", "ray", "cpu", "fp16", "max_tokens", "skip_long"),
}


def add_part_options(group: Any) -> None:
    """Add the options."""
    group.add_argument(
        "--parts",
        type=Path,
        metavar="FOLDER",
        help="translate in parts, each a file in this folder; several workers, also of other "
        "machines, may share it; stopped and started again, they go on with the parts that are "
        "missing, and --output is written once all are there",
    )
    group.add_argument("--part-lines", type=int, metavar="N", help=f"in a part ({PART_LINES})")
    group.add_argument(
        "--shard",
        metavar="I/N",
        help="only part I of every N, from 0/N; without it a worker takes any part that is missing",
    )
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="of a Ray cluster that shares the folder: a worker for each GPU, and for each "
        "OMP_NUM_THREADS processors (1) of the rest; `local` starts one on this machine",
    )


def check(args: argparse.Namespace) -> None:
    """Refuse options that need another one.

    Raises:
        ConfigError: the first of them.
    """
    from fairseq_ext.utils import shared_folder

    shared_folder.check_options(
        args.parts, part_lines=args.part_lines, shard=args.shard, ray=args.ray
    )
    if args.parts is not None and args.input is None:
        raise ConfigError("`--parts` needs `--input`; standard input cannot be read again.")


def run(
    args: argparse.Namespace,
    check_inputs: Callable[[], object],
    opened: Callable[[contextlib.ExitStack], Writes],
) -> int:
    """Translate this worker's parts; write the complete output once no part is missing.

    Args:
        args: of the command.
        check_inputs: reads all text before the first part is begun.
        opened: loads the models; gives what writes the translations of a part.

    Raises:
        ConfigError: options that cannot work.
        DataError: a text or the folder cannot be used.
        CheckpointError: neither can a model.
    """
    from fairseq_ext.decoding import parts
    from fairseq_ext.text.parts import cut
    from fairseq_ext.utils.files import require_file
    from fairseq_ext.utils.shared_folder import shard

    number, count = shard(args.shard)
    size = args.part_lines or PART_LINES
    every, texts = cut([require_file(path, "text file") for path in args.input], size)
    folder = parts.Folder(
        args.parts, every, details=args.json is not None, line_by_line=(args.nbest or 1) == 1
    )
    job = {"inputs": texts, "part_lines": size, **_job(args)}
    begun = folder.is_of(job)
    own = [part for part in every if part.number % count == number]
    if not begun:
        check_inputs()
    if args.ray is not None:
        _on_ray(args, folder)
    elif folder.missing(own):
        with contextlib.ExitStack() as stack:
            write = opened(stack)
            stack.enter_context(folder.begun(job))
            folder.work(own, _with_bar(write, folder.missing(own)))
    _finish(args, folder)
    return 0


def _job(args: argparse.Namespace) -> dict[str, Any]:
    """Everything else that translations depend on: files by checksum, and the options given."""
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.decoding.loading import data_of, in_run
    from fairseq_ext.engine.files import is_engine_model
    from fairseq_ext.utils.files import require_file, sha256

    models = [require_file(bundle.as_file(in_run(path)), "model") for path in args.path]
    data = args.data
    if data is None and not any(map(is_engine_model, models)):
        data = data_of(models[0])
    folders = [path.parent for path in models] + ([] if data is None else [data])
    files = [*models] + ([] if data is None else sorted(data.glob("dict.*.txt")))
    files += [folder / "text.json" for folder in folders if (folder / "text.json").is_file()]
    given = {name: value for name, value in vars(args).items() if name not in ELSEWHERE}
    files += [require_file(one) for one in given.values() if isinstance(one, Path)]
    given = {name: one for name, one in given.items() if _was_given(name, one)}
    return {
        "files": [{"name": path.name, "sha256": sha256(path)} for path in files],
        "options": {f"--{name.replace('_', '-')}": one for name, one in given.items()},
        "details": args.json is not None,
    }


def _was_given(name: str, value: Any) -> bool:
    """Whether an option that is no file was given; 0 and ``--no-tokenize`` say something too."""
    if value is False:
        return name in TEXT_FLAGS
    return value is not None and value != [] and not isinstance(value, Path)


def _with_bar(write: Writes, missing: list[Part]) -> Writes:
    """The same with a progress bar over the lines of the parts that are missing."""
    from tqdm import tqdm

    lines = sum(part.lines for part in missing)
    bar = tqdm(desc="translate", total=lines, unit=" lines", file=sys.stderr, disable=None)

    def write_and_count(part: Part, *files: Any) -> None:
        write(part, *files)
        bar.update(part.lines)

    return write_and_count


def _on_ray(args: argparse.Namespace, folder: Folder) -> None:
    """Workers of a cluster do the parts that are missing."""
    from fairseq_ext.utils import ray_workers

    if not folder.missing():
        return
    details = None if args.json is None else Path(os.devnull)  # the whole is written here
    alone = {**vars(args), "ray": None, "output": None, "json": details}
    alone |= {name: one.absolute() for name, one in alone.items() if isinstance(one, Path)}
    alone |= {name: [path.absolute() for path in alone[name]] for name in ("path", "input")}
    ray_workers.run(args.ray, args.run, argparse.Namespace(**alone), cpu=args.cpu)


def _finish(args: argparse.Namespace, folder: Folder) -> None:
    """Write the whole, or say what is missing."""
    missing, every = len(folder.missing()), len(folder.parts)
    print(f"{folder.path}: {every - missing:,} of {every:,} parts are there", file=sys.stderr)
    if missing:
        return
    folder.tidy()
    if args.json is not None:
        folder.join(args.json, details=True)
    if args.output is not None:
        folder.join(args.output)
