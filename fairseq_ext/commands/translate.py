"""``fairseq-ext translate``: translate lines of text."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fairseq_ext.commands import options, text_options
from fairseq_ext.commands.text_options import TextOptions
from fairseq_ext.decoding import search as searching
from fairseq_ext.decoding.search import BUFFER, DATA_HELP, KEEP_HELP, Candidate, SearchOptions
from fairseq_ext.utils.errors import ConfigError, printable, wrong_value
from fairseq_ext.utils.files import FileVersions, atomic_write, require_file, sha256
from fairseq_ext.utils.option_fields import (
    add_options,
    flag,
    from_args,
    option,
    require_at_least,
    specified,
)

if TYPE_CHECKING:
    from fairseq_ext.decoding.loading import Translates
    from fairseq_ext.decoding.stream import Translation
    from fairseq_ext.text.reading import Part

    TranslateLines = Callable[..., Iterator[Translation]]

PART_LINES = 10_000
OF_JOB = ("src", "tgt", "split_sentences", "keep", "keep_addresses", "markup")
"""Options of a :class:`Request` that all workers must share (see :func:`_job`)."""
NOT_OF_JOB = ("cpu", "fp16", "max_tokens", "shortlist", "skip_long", "bpe_codes")
"""Options of search and text that may differ between workers; of files, only the content counts."""


@dataclasses.dataclass(frozen=True)
class PartOptions:
    """Options to translate a large text in parts."""

    parts: Path | None = option(
        None,
        "translate in parts, and write a file for each part to this folder; workers on one or "
        "several machines may share it, and a restarted worker continues with the missing parts; "
        "--output is written when no part is missing",
        metavar="FOLDER",
    )
    part_lines: int | None = option(None, f"lines in a part ({PART_LINES})")
    shard: str | None = option(
        None,
        "translate only parts I, I + N, I + 2N …, counted from 0 (default: any missing part)",
        metavar="I/N",
    )
    ray: str | None = option(
        None,
        "address of a Ray cluster whose machines share the folder; one worker runs on each GPU, "
        "and one on every OMP_NUM_THREADS (default: 1) of the remaining processors; `local` starts "
        "a cluster on this machine",
        metavar="ADDRESS",
    )


@dataclasses.dataclass(frozen=True)
class Request:
    """The command-line options of ``translate``, and the models, data and text that they name."""

    words: Sequence[str] = option(
        [],
        f"{DATA_HELP}; or text to translate, if the model has its own dictionaries",
        "words",
        nargs="*",
        metavar="DATA|TEXT",
    )
    path: Sequence[Path] = ()  # a name on the Hub is resolved to the same commit for all workers
    model: Path | None = None
    data: Path | None = None  # folder with the dictionaries
    lines: Sequence[str] | None = None  # text from the command line
    input: Sequence[Path] | None = option(
        None, "files to translate, in this order (default: standard input)", nargs="+"
    )
    split_sentences: bool = option(
        False, "translate each sentence of a line alone, and join the translations"
    )
    keep: Sequence[str] = option([], KEEP_HELP, action="append", metavar="PATTERN")
    keep_addresses: bool = option(
        False, "keep URLs, e-mail addresses and emoji as they are, as `serve` does by default"
    )
    markup: bool = option(
        False, "treat lines as XML or HTML: keep tags; well-formed text stays well-formed"
    )
    output: Path | None = option(None, "file to write (default: standard output)", "-o", "--output")
    src: str | None = option(None, "source language (default: as in training)", metavar="LANG")
    tgt: str | None = option(None, "target language (default: as in training)", metavar="LANG")
    json: Path | None = option(
        None, "also write source, translations, tokens and scores as JSON, one line per sentence"
    )
    search: SearchOptions = dataclasses.field(default_factory=SearchOptions)
    text: TextOptions = dataclasses.field(default_factory=TextOptions)
    parts: PartOptions = dataclasses.field(default_factory=PartOptions)

    def check(self) -> None:
        """Raise ConfigError if options do not go together."""
        self._check_parts()
        searching.require_compatible(
            self.search.constraints,
            keep=self.keep,
            keep_addresses=self.keep_addresses,
            markup=self.markup,
            split_sentences=self.split_sentences,
        )

    def _check_parts(self) -> None:
        parts = self.parts
        if parts.parts is None:
            for name in specified(parts, ("part_lines", "shard", "ray")):
                raise ConfigError(f"`{flag(name)}` goes with `--parts`, which is missing.")
            return
        if parts.part_lines is not None:
            require_at_least(parts, part_lines=1)
        if parts.ray is not None and parts.shard is not None:
            raise ConfigError("`--shard` does not go with `--ray`, which shares out the parts.")
        if self.input is None:
            raise ConfigError("`--parts` needs `--input`; standard input cannot be read again.")
        for name, path in (("--output", self.output), ("--json", self.json)):
            if path and path.resolve().is_relative_to(parts.parts.resolve()):
                raise ConfigError(
                    f"`{name}` {path} is in the folder of the parts, which has files of its own; "
                    "name a file elsewhere."
                )


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "translate",
        help="translate a file or standard input with trained models",
        description="Translate text with one sentence per line: each input line gives one output "
        "line, in the same order. With --nbest above 1, each translation is a line of four columns "
        "separated by tabs: line number (from 1), rank (from 1), score (log-probability in base 2, "
        "as fairseq-generate prints it), text.",
        example="fairseq-ext translate --model tatoeba-es-en 'Hola. ¿Cómo estás?'",
    )
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument(
        "--path",
        type=Path,
        action="extend",
        nargs="+",
        metavar="CHECKPOINT",
        help="checkpoint of any architecture, bundle, folder of a run, model published by "
        "fairseq's authors (folder, archive or name), or ORG/NAME[@REVISION] on the Hugging Face "
        "Hub; several checkpoints, or any models that the engine runs, form an ensemble",
    )
    models.add_argument(
        "--model",
        type=Path,
        metavar="NAME",
        help="one model, as with --path, or the name of a model that comes with the plugin "
        "(`fairseq-ext models` lists them)",
    )
    add_options(parser, Request)
    text_options.add_text_options(parser)
    draws = ("sampling", "mbr", *searching.DRAWS, "utility")
    names = SearchOptions.__dataclass_fields__.keys() - draws
    add_options(parser.add_argument_group("search"), SearchOptions, names)
    add_options(parser.add_argument_group("samples instead of search"), SearchOptions, draws)
    add_options(parser.add_argument_group("large texts"), PartOptions)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    request = from_args(Request, args)
    request.check()
    models = _find_models(request)
    data, lines = _data_or_text(request, models)
    request = dataclasses.replace(request, path=models, data=data, lines=lines)
    options.check_paths(request)  # again, because only now models and data are paths
    translate(request)


def translate(request: Request) -> None:
    """Translate the input of a request with the models in its ``path``, and write the output."""
    # This logger tells why fairseq translates instead of the engine.
    logging.getLogger("fairseq_ext.generation.on_engine").setLevel(logging.INFO)
    if request.parts.parts is not None:
        translate_parts(request)
        return
    input_versions = FileVersions(map(require_file, request.input or ()))
    line_count = count_lines(request)
    with contextlib.ExitStack() as stack:
        translator, translate_lines = load(request)
        out = stack.enter_context(atomic_write(request.output)) if request.output else None
        if out is None and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        details = stack.enter_context(atomic_write(request.json)) if request.json else None
        start = time.monotonic()
        translations = translate_all(request, translate_lines)
        if not request.split_sentences:
            translations = _noting_several(translations)
        if sys.stderr.isatty():
            from tqdm import tqdm  # only for a terminal, because the import takes time

            translations = tqdm(translations, total=line_count, desc="translate", unit=" lines")
        count = write(translations, request.search.nbest or 1, out or sys.stdout, details)
        input_versions.require_unchanged()
        print(_summary(translator, count, time.monotonic() - start), file=sys.stderr)


def _find_models(request: Request) -> list[Path]:
    """List the paths of the models that ``--model`` or ``--path`` names."""
    from fairseq_ext.decoding.loading import models_of
    from fairseq_ext.model import find_model

    names = request.path or [request.model or Path()]
    text = next((str(path) for path in names[1:] if " " in str(path)), None)
    if text and not os.path.exists(text):  # noqa: PTH110  # may be too long for a path
        raise ConfigError(
            f"`--path` takes all arguments after it as models, but {text:.80} is not a file or "
            "folder. Put text to translate before `--path`, or name the model by `--model`."
        )
    languages = request.src, request.tgt
    paths = [checkpoint for path in names for checkpoint in models_of(path, *languages)]
    if request.model is not None and not paths[0].exists():
        raise ConfigError(
            f"`--model {request.model}`: there is no such file or folder, nor a model of that "
            f"name; the plugin's own are {', '.join(find_model.shipped()) or 'none'}."
        )
    return paths


def _data_or_text(
    request: Request, models: Sequence[Path]
) -> tuple[Path | None, Sequence[str] | None]:
    """Return the positional arguments as ``(data folder, None)`` or ``(None, lines of text)``.

    Without arguments, return ``(None, None)``. Raise ConfigError for anything else.
    """
    from fairseq_ext.checkpoints import bundle, published

    words = request.words
    if not words:
        return None, None
    if len(words) == 1 and os.path.isdir(words[0]):  # noqa: PTH112  # may be a long text
        return Path(words[0]), None
    if all(bundle.is_bundle(path) or published.is_prepared(path) for path in models):
        if request.input is not None:
            raise ConfigError("`--input` does not go with text as an argument; give one of them.")
        for text in words:
            if "." in text and os.path.isfile(text):  # noqa: PTH113  # may be a long text
                raise ConfigError(f"{text} is a file; translate its lines by `--input {text}`.")
        return None, [line for text in words for line in text.split("\n")]
    raise ConfigError(
        f"DATA must be one folder of fairseq-preprocess, but is {words[0]:.80}. Text can be an "
        "argument where the model is a bundle, which has its own dictionaries; for others, "
        "`echo TEXT | fairseq-ext translate …`."
    )


def count_lines(request: Request) -> int | None:
    """Check the input files and return their number of lines; None for standard input."""
    from fairseq_ext.text import checks

    if request.input is None:
        return None
    return sum(checks.check_text(path, empty_lines=True, max_tokens=None) for path in request.input)


def load(request: Request) -> tuple[Translates, TranslateLines]:
    """Load the models; return the translator, and a function that translates an input.

    The function takes the input's lines as bytes and its name, and yields translations.
    """
    from fairseq_ext.decoding import stream
    from fairseq_ext.decoding.loading import open_model
    from fairseq_ext.text import placeholders
    from fairseq_ext.text.reading import decoded
    from fairseq_ext.text.sentences import UNSPLIT, sentence_splitter

    search, languages = request.search, (request.src, request.tgt)
    keeper = placeholders.keeper(request.keep, request.markup, request.keep_addresses)
    model = open_model(request.path, request.data, languages, search.search)
    src, tgt = model.translator.src, model.translator.tgt
    constrained = search.constraints is not None
    codec = text_options.chosen_codec(request.text, src, tgt, model.folders, constrained)
    splitter = sentence_splitter(src, tgt) if request.split_sentences else UNSPLIT
    model.versions.require_unchanged()
    utility = None
    if search.mbr is not None:
        from fairseq_ext.decoding import mbr

        utility = mbr.build_utility(search.utility or searching.UTILITY)

    def translate(raw: Iterable[bytes], name: Path | str, **place: Any) -> Iterator[Translation]:
        translations = stream.translations(
            (line for _, line in decoded(raw, name, place.get("first", 1))),
            model.translator,
            codec,
            name=str(name),
            **place,
            buffer=BUFFER if search.buffer_size is None else search.buffer_size,
            skip_long=search.skip_long,
            splitter=splitter,
            keeper=keeper,
        )
        return translations if utility is None else mbr.keep_best(translations, utility)

    return model.translator, translate


def translate_all(request: Request, translate: TranslateLines) -> Iterator[Translation]:
    """Translate the text of the command line, standard input, or the input files."""
    from fairseq_ext.text.reading import bounded

    if request.lines is not None:
        raw = [os.fsencode(f"{line}\n") for line in request.lines]
        yield from translate(raw, "the command line")
    elif request.input is None:
        if sys.stdin.isatty():
            print("Type text, one sentence per line; Ctrl-D ends it.", file=sys.stderr)
        name = "standard input"
        yield from translate(bounded(sys.stdin.buffer, name), name)
    before = end = 0
    for path in request.input or ():
        with path.open("rb") as file:
            for translation in translate(file, path, before=before):
                yield translation
                end = translation.line
        before = end


def write(
    translations: Iterable[Translation], nbest: int, out: IO[str], details: IO[str] | None = None
) -> int:
    """Write translations to ``out``, and as JSON to ``details`` if there is such a file.

    With ``nbest`` above 1, each row of ``out`` has line number, rank, score and text. Return the
    number of the last line, or 0 if there is none.
    """
    number = 0
    # An untrusted dictionary may have tokens that control a terminal.
    display = printable if out.isatty() else str
    for translation in translations:
        number = translation.line
        out.writelines(_rows(translation, nbest, display))
        out.flush()
        if details is not None:
            details.write(json.dumps(_as_dict(translation), ensure_ascii=False) + "\n")
    return number


def _noting_several(translations: Iterable[Translation]) -> Iterator[Translation]:
    """Yield ``translations``; print a note at the first line that seems to have two sentences."""
    from fairseq_ext.text.sentences import seem_several

    noted = False
    for translation in translations:
        if not noted and seem_several(translation.source):
            from tqdm import tqdm  # only here, because the import takes time

            noted = True
            tqdm.write(  # above the progress bar, if there is one
                f"note: line {translation.line} seems to have several sentences. A model that was "
                "trained on single sentences may leave some out: see --split-sentences.",
                file=sys.stderr,
            )
        yield translation


def _rows(translation: Translation, nbest: int, display: Callable[[str], str]) -> Iterator[str]:
    if nbest == 1:
        yield display(translation.texts[0]) + "\n"
        return
    scores = [candidate.score for candidate in translation.candidates] or [0.0]
    for rank, (text, score) in enumerate(zip(translation.texts, scores, strict=True), start=1):
        yield f"{translation.line}\t{rank}\t{score:.4f}\t{display(text)}\n"


def _as_dict(translation: Translation) -> dict[str, Any]:
    # An empty line has a text without a candidate, and so has a line that stays as it is.
    candidates = translation.candidates or [Candidate("", 0.0)] * bool(translation.text)
    pairs = zip(translation.texts, candidates, strict=False)
    return {
        "line": translation.line,
        "source": translation.source,
        "translations": [
            {"text": text, "tokens": candidate.tokens, "score": candidate.score}
            for text, candidate in pairs
        ],
    }


def _summary(translator: Translates, count: int, seconds: float) -> str:
    tokens = translator.counts
    unknown = f", {tokens.unknown:,} of {tokens.source:,} source tokens unknown"
    return (
        f"{count:,} {'line' if count == 1 else 'lines'} in {seconds:.1f} s "
        f"({tokens.target / max(seconds, 1e-9):,.0f} tokens/s){unknown if tokens.unknown else ''}"
    )


def translate_parts(request: Request) -> None:
    """Translate this worker's parts; write the complete output once no part is missing.

    With ``--ray``, start workers on the cluster instead, and wait for them.
    """
    from tqdm import tqdm

    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.decoding import parts
    from fairseq_ext.text.reading import cut
    from fairseq_ext.utils.shared_folder import SharedFolder

    text = "0/1" if request.parts.shard is None else request.parts.shard
    shard = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if shard is None or int(shard[1]) >= int(shard[2]):
        raise wrong_value("--shard", "I/N with I from 0 to N - 1, such as 0/4", text)
    remainder, divisor = map(int, shard.groups())
    size = request.parts.part_lines or PART_LINES
    inputs = [require_file(path, "text file") for path in request.input or ()]
    files = _files(request)
    # For a bundle, only bundle.json is listed, because it has the checksums of the other files.
    versions = FileVersions([*inputs, *files, *chain(*map(bundle.files_of, request.path))])
    all_parts = cut(inputs, size)
    nbest = request.search.nbest or 1
    folder = request.parts.parts or Path()
    shared = SharedFolder(folder, parts.HEAD)
    job = {"part_lines": size, **_job(request, inputs, files)}
    versions.require_unchanged()
    by_name = {parts.file_name(part): part for part in all_parts}
    names = [name for name, part in by_name.items() if part.number % divisor == remainder]
    if not shared.is_of(job):
        count_lines(request)  # check all text before the first part
    if not shared.missing(names):
        shared.remove_locks(names)
    elif request.parts.ray is not None:
        _run_on_ray(request, folder)
    else:
        _, translate_lines = load(request)
        shared.begin(job)
        lines = sum(by_name[name].lines for name in shared.missing(names))
        bar = tqdm(desc="translate", total=lines, unit=" lines", disable=None)

        def translate_part(part: Part, *files: IO[str]) -> None:
            place = {"first": part.first, "before": part.before}
            write(translate_lines(part.read(), part.path, **place), nbest, *files)
            versions.require_unchanged()  # before the part counts as done
            bar.update(part.lines)

        def write_part(name: str) -> None:
            parts.write(folder, by_name[name], translate_part, details=request.json is not None)

        shared.work(names, write_part)
    versions.require_unchanged()
    missing, total = len(shared.missing(by_name)), len(all_parts)
    cure = "" if missing or request.output or request.json else "; `-o FILE` joins them"
    print(f"{folder}: {total - missing:,} of {total:,} parts are done{cure}", file=sys.stderr)
    if not missing:
        if request.json is not None:
            parts.join(folder, all_parts, request.json, parts.DETAILS)
        if request.output is not None:
            parts.join(folder, all_parts, request.output)


def _files(request: Request) -> list[Path]:
    """List the models, dictionaries and other files that the translations depend on."""
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.decoding.loading import data_of

    models = [require_file(bundle.as_file(path), "model") for path in request.path]
    data = request.data or data_of(models[0])
    folders = [*(path.parent for path in models), data]
    files = [*models, *sorted(data.glob("dict.*.txt"))]
    files += [path for folder in folders if (path := folder / "text.json").is_file()]
    optional = (request.search.shortlist, request.text.bpe_codes)
    return files + [require_file(path) for path in optional if path is not None]


def _job(request: Request, inputs: Sequence[Path], files: Sequence[Path]) -> dict[str, Any]:
    """Describe what the translations depend on, for a manifest: files by checksum, and options.

    Options that may differ between workers are left out: devices, memory, paths and --skip-long.
    """
    values = dataclasses.asdict(request.search) | dataclasses.asdict(request.text)
    values |= {name: getattr(request, name) or None for name in OF_JOB}
    return {
        "inputs": [{"name": path.name, "sha256": sha256(path)} for path in inputs],
        "files": [{"name": path.name, "sha256": sha256(path)} for path in files],
        "options": {
            flag(name): value
            for name, value in values.items()
            if name not in NOT_OF_JOB
            and value is not None
            and (value is not False or name in text_options.TEXT_FLAGS)  # --no-tokenize
        },
        "details": request.json is not None,
    }


def _run_on_ray(request: Request, folder: Path) -> None:
    from fairseq_ext.utils import ray_workers

    text, search = request.text, request.search
    codes, shortlist = (path and path.absolute() for path in (text.bpe_codes, search.shortlist))
    worker_request = dataclasses.replace(
        request,
        data=request.data and request.data.absolute(),
        path=[path.absolute() for path in request.path],
        input=[path.absolute() for path in request.input or ()],
        output=None,  # this process joins the parts
        json=None if request.json is None else Path(os.devnull),
        text=dataclasses.replace(text, bpe_codes=codes),
        search=dataclasses.replace(search, shortlist=shortlist),
        parts=dataclasses.replace(request.parts, parts=folder.absolute(), ray=None),
    )
    ray_workers.run(request.parts.ray or "", _work_on_ray, worker_request, cpu=search.cpu)


def _work_on_ray(request: Request, cpu: bool) -> None:
    """Translate missing parts in a worker of the Ray cluster; ``cpu`` says to use no GPU."""
    translate(dataclasses.replace(request, search=dataclasses.replace(request.search, cpu=cpu)))
