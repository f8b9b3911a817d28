"""``fairseq-ext translate --parts``: translate large texts in parts, with several workers."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import flag, option

if TYPE_CHECKING:
    from fairseq_ext.commands.translate import Request
    from fairseq_ext.decoding.parts import Folder
    from fairseq_ext.text.parts import Part

PART_LINES = 10_000


@dataclasses.dataclass(frozen=True)
class PartOptions:
    """Options of ``translate`` for large texts."""

    parts: Path | None = option(
        None,
        "folder for translating in parts, one file for each; several workers, also on other "
        "machines, may share it, and a worker started again goes on with the missing parts; "
        "--output is written once all parts are there",
        metavar="FOLDER",
    )
    part_lines: int | None = option(None, f"lines in a part ({PART_LINES})", metavar="N")
    shard: str | None = option(
        None,
        "translate only part I of every N, counted from 0 (default: any missing part)",
        metavar="I/N",
    )
    ray: str | None = option(
        None,
        "address of a Ray cluster that shares the folder; each GPU runs a worker, and so do every "
        "OMP_NUM_THREADS (1) other processors; `local` starts a cluster on this machine",
        metavar="ADDRESS",
    )

    def check(self, inputs: Sequence[Path] | None, outputs: Mapping[str, Path | None]) -> None:
        """Refuse options that need another one, and outputs in the folder of the parts."""
        if self == PartOptions():
            return
        from fairseq_ext.utils import shared_folder

        shared_folder.check_options(
            self.parts, part_lines=self.part_lines, shard=self.shard, ray=self.ray
        )
        if self.parts is not None and inputs is None:
            raise ConfigError("`--parts` needs `--input`; standard input cannot be read again.")
        for name, path in outputs.items():
            if self.parts and path and path.resolve().is_relative_to(self.parts.resolve()):
                raise ConfigError(
                    f"`{name}` {path} is in the folder of the parts, which has files of its own; "
                    "name a file elsewhere."
                )


def run(request: Request) -> int:
    """Translate this worker's parts; write the complete output once no part is missing."""
    from tqdm import tqdm

    from fairseq_ext.commands.translate import Session, count_lines
    from fairseq_ext.decoding import parts
    from fairseq_ext.decoding.loading import files_of, in_run
    from fairseq_ext.text.parts import cut
    from fairseq_ext.utils.file_versions import FileVersions
    from fairseq_ext.utils.files import require_file
    from fairseq_ext.utils.shared_folder import shard

    options, details = request.parts, request.json is not None
    remainder, divisor = shard(options.shard)
    size = options.part_lines or PART_LINES
    inputs = [require_file(path, "text file") for path in request.input or ()]
    files = _files(request)
    # Of a bundle, the manifest has only bundle.json, which lists the checksums of its other files.
    versions = FileVersions([*inputs, *files, *chain(*map(files_of, map(in_run, request.path)))])
    all_parts, texts = cut(inputs, size)
    line_by_line = (request.search.nbest or 1) == 1
    folder = parts.Folder(
        options.parts or Path(), all_parts, details=details, line_by_line=line_by_line
    )
    job = {"inputs": texts, "part_lines": size, **_job(request, files)}
    versions.require_unchanged()
    shard_parts = [part for part in all_parts if part.number % divisor == remainder]
    if not folder.shared.is_of(job):
        count_lines(request)  # read all text before the first part
    if options.ray is not None:
        _run_on_ray(request, folder)
    elif folder.missing(shard_parts):
        with Session.load(request) as session:
            folder.shared.begin(job)
            lines = sum(part.lines for part in folder.missing(shard_parts))
            bar = tqdm(desc="translate", total=lines, unit=" lines", disable=None)

            def write(part: Part, *files: Any) -> None:
                versions.require_unchanged()
                session.translate_part(part, *files)
                versions.require_unchanged()  # before the part appears
                bar.update(part.lines)

            folder.work(shard_parts, write)
    versions.require_unchanged()
    missing, total = len(folder.missing()), len(folder.parts)
    print(f"{folder.path}: {total - missing:,} of {total:,} parts are there", file=sys.stderr)
    if not missing:
        if request.json is not None:
            folder.join(request.json, details=True)
        if request.output is not None:
            folder.join(request.output)
    return 0


def _files(request: Request) -> list[Path]:
    """List the files on which translations depend, except the input."""
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.decoding.loading import data_of, in_run
    from fairseq_ext.utils.files import require_file

    models = [require_file(bundle.as_file(in_run(path)), "model") for path in request.path]
    data = request.data or data_of(models[0])
    folders = [path.parent for path in models] + ([] if data is None else [data])
    files = [*models] + ([] if data is None else sorted(data.glob("dict.*.txt")))
    files += [path for folder in folders if (path := folder / "text.json").is_file()]
    optional = (request.search.shortlist, request.text.bpe_codes)
    return files + [require_file(path) for path in optional if path is not None]


def _job(request: Request, files: Sequence[Path]) -> dict[str, Any]:
    """Describe everything that translations depend on: files by checksum, and options.

    Options that may differ between workers are left out: devices, memory, paths, and --skip-long,
    without which a part with overlong lines is not made at all.
    """
    from fairseq_ext.utils.files import sha256

    values: dict[str, Any] = {**request.search.of_job(), **request.text.of_job()}
    for name in ("src", "tgt", "split_sentences", "keep", "markup"):
        if value := getattr(request, name):
            values[name] = value
    return {
        "files": [{"name": path.name, "sha256": sha256(path)} for path in files],
        "options": {flag(name): value for name, value in values.items()},
        "details": request.json is not None,
    }


def _run_on_ray(request: Request, folder: Folder) -> None:
    """Let workers of a cluster translate the missing parts."""
    from fairseq_ext.utils import ray_workers

    if not folder.missing():
        return
    text, search = request.text, request.search
    worker_request = dataclasses.replace(
        request,
        data=_absolute(request.data),
        path=[path.absolute() for path in request.path],
        input=[path.absolute() for path in request.input or ()],
        output=None,  # this process joins the parts
        json=None if request.json is None else Path(os.devnull),
        text=dataclasses.replace(text, bpe_codes=_absolute(text.bpe_codes)),
        search=dataclasses.replace(search, shortlist=_absolute(search.shortlist)),
        parts=dataclasses.replace(request.parts, parts=folder.path.absolute(), ray=None),
    )
    worker_args = argparse.Namespace(request=worker_request)
    ray_workers.run(request.parts.ray or "", _work_on_ray, worker_args, cpu=request.search.cpu)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _work_on_ray(args: argparse.Namespace) -> int:
    """Translate parts as a worker of the cluster; ``args`` say whether it has a GPU."""
    from fairseq_ext.commands.translate import translate

    search = dataclasses.replace(args.request.search, cpu=args.cpu)
    return translate(dataclasses.replace(args.request, search=search))
