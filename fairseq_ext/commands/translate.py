"""``fairseq-ext translate``: translate lines of text."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fairseq_ext.commands import options, search_options, text_options, translate_parts
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.commands.search_options import SearchOptions
from fairseq_ext.commands.text_options import TextOptions
from fairseq_ext.commands.translate_parts import PartOptions
from fairseq_ext.decoding.search import BUFFER, DATA_HELP
from fairseq_ext.utils.errors import ConfigError, printable
from fairseq_ext.utils.option_fields import add_options, from_args, option

if TYPE_CHECKING:
    from fairseq_ext.decoding.search import Translates
    from fairseq_ext.decoding.stream import TextCodec, Translation
    from fairseq_ext.text.parts import Part
    from fairseq_ext.text.placeholders import Keeper
    from fairseq_ext.text.sentences import SentenceSplitter


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of a call of ``translate``; :meth:`resolved` sorts models, data and text."""

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
        None,
        "text to translate, from several files in this order (default: standard input)",
        type=Path,
        nargs="+",
        metavar="FILE",
    )
    split_sentences: bool = option(
        False, "translate each sentence of a line alone, and join the translations"
    )
    keep: Sequence[str] = option(
        [],
        "regular expression of text to keep as it is, such as \\{\\w+\\}; may be repeated",
        action="append",
        metavar="PATTERN",
    )
    markup: bool = option(
        False, "treat lines as XML or HTML: keep tags, and keep well-formed text well-formed"
    )
    output: Path | None = option(
        None, "file to write (default: standard output)", *("-o", "--output"), metavar="FILE"
    )
    src: str | None = option(None, "source language (default: the trained one)", metavar="LANG")
    tgt: str | None = option(None, "target language (default: the trained one)", metavar="LANG")
    json: Path | None = option(
        None,
        "also write source, translations, tokens and scores as JSON, one line per sentence",
        metavar="FILE",
    )
    search: SearchOptions = dataclasses.field(default_factory=SearchOptions)
    text: TextOptions = dataclasses.field(default_factory=TextOptions)
    parts: PartOptions = dataclasses.field(default_factory=PartOptions)

    def check(self) -> None:
        """Refuse options that do not go together."""
        self.parts.check(self.input, {"--output": self.output, "--json": self.json})
        exclusive = {
            "--keep": bool(self.keep),
            "--markup": self.markup,
            "--constraints": self.search.constraints is not None,
            "--split-sentences": self.split_sentences,
        }
        names = [name for name, is_present in exclusive.items() if is_present]
        if len(names) > 1 and names != ["--keep", "--markup"]:
            raise ConfigError(f"`{names[0]}` does not go with `{names[-1]}`; give one of them.")

    def resolved(self) -> Request:
        """Find the models, and tell a folder with data from text among the arguments."""
        path = _find_models(self)
        data, lines = _data_or_text(self, path)
        return dataclasses.replace(
            self, words=(), model=None, path=path, data=data or self.data, lines=lines
        )


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "translate",
        help="translate a file or standard input with trained models",
        description="Translate text with one sentence per line: each input line gives one output "
        "line, in the same order. With --nbest above 1, each translation is a line of four columns "
        "separated by tabs: line number (from 1), rank (from 1), score (log-probability in base 2, "
        "as fairseq-generate prints it), text.",
    )
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument(
        "--path",
        type=Path,
        nargs="+",
        metavar="CHECKPOINT",
        help="checkpoint of any architecture, bundle, folder of a run, model published by "
        "fairseq's authors (folder, archive or name), or ORG/NAME[@REVISION] on the Hugging Face "
        "Hub; several checkpoints, or any models of the engine, vote as an ensemble",
    )
    models.add_argument(
        "--model",
        type=Path,
        metavar="NAME",
        help="single model of these kinds, or the name of one that comes with the plugin "
        "(a folder of models/)",
    )
    add_options(parser, Request)
    text_options.add_text_options(parser)
    search_options.add_search(parser)
    add_options(parser.add_argument_group("large texts"), PartOptions)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    request = from_args(Request, args)
    request.check()
    request = request.resolved()
    options.keep_inputs(request)  # again, because only now models and data are paths
    return translate(request)


def translate(request: Request) -> int:
    """Translate the input of a resolved request, and return the exit status."""
    # This logger tells why fairseq translates instead of the engine.
    logging.getLogger("fairseq_ext.generation.on_engine").setLevel(logging.INFO)
    from fairseq_ext.utils import files
    from fairseq_ext.utils.file_versions import FileVersions

    if request.parts.parts is not None:
        return translate_parts.run(request)
    input_versions = FileVersions(map(files.require_file, request.input or ()))
    line_count = count_lines(request)
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(Session.load(request))
        out = stack.enter_context(files.atomic_write(request.output)) if request.output else None
        out = out or _standard_output()
        details = stack.enter_context(files.atomic_write(request.json)) if request.json else None
        start = time.monotonic()
        translations = session.translate_all()
        if sys.stderr.isatty():
            from tqdm import tqdm  # not for one sentence, which takes no longer than the import

            translations = tqdm(translations, total=line_count, desc="translate", unit=" lines")
        count = session.write(translations, out, details)
        input_versions.require_unchanged()
        print(_summary(session.translator, count, time.monotonic() - start), file=sys.stderr)
    return 0


def _find_models(request: Request) -> list[Path]:
    """List the paths of the models that ``--model`` or ``--path`` names."""
    from fairseq_ext.decoding.loading import models_of
    from fairseq_ext.model import find_model

    names = request.path or [request.model or Path()]
    if not request.words:
        # A name on the Hub has no blank.
        _require_no_text(path for path in names[1:] if " " in str(path))
    languages = request.src, request.tgt
    paths = [checkpoint for path in names for checkpoint in models_of(path, *languages)]
    if not request.words:
        _require_no_text(paths[1:])
    if request.model is not None and not paths[0].exists():
        raise ConfigError(
            f"`--model {request.model}`: there is no such file or folder, nor a model of that "
            f"name; those that come along are {', '.join(find_model.shipped()) or 'none'}."
        )
    return paths


def _require_no_text(paths: Iterable[Path]) -> None:
    """Refuse arguments of ``--path`` that are not files, because they are probably input text."""
    for path in paths:
        if not os.path.exists(path):  # noqa: PTH110  # of any text, also a long one
            raise ConfigError(
                f"`--path` takes all that follows it for models, but {path!s:.80} is no file or "
                "folder. Put text to translate before `--path`, or name the model with `--model`."
            )


def _data_or_text(
    request: Request, models: Sequence[Path]
) -> tuple[Path | None, Sequence[str] | None]:
    """Return the folder with the data, or the lines of text, among the arguments."""
    from fairseq_ext.decoding.loading import has_dictionaries

    words = request.words
    if not words:
        return None, None
    if len(words) == 1 and os.path.isdir(words[0]):  # noqa: PTH112  # of any text, also a long one
        return Path(words[0]), None
    if all(map(has_dictionaries, models)):
        if request.input is not None:
            raise ConfigError("`--input` does not go with text as an argument; give one of them.")
        return None, [line for text in words for line in text.split("\n")]
    fault = "DATA must be one folder"
    if len(words) == 1:
        fault = f"{words[0]:.80} is no folder; give the one that fairseq-preprocess wrote"
    raise ConfigError(
        f"{fault}. Text can be an argument where the model is a bundle, which has its own "
        "dictionaries; for others, `echo TEXT | fairseq-ext translate …`."
    )


def count_lines(request: Request) -> int | None:
    """Check the input files and count their lines; None for standard input."""
    from fairseq_ext import text

    if request.input is None:
        return None
    return sum(text.check_text(path, empty_lines=True, max_tokens=None) for path in request.input)


@dataclasses.dataclass(frozen=True)
class Session:
    """A request with loaded models."""

    request: Request
    translator: Translates
    codec: TextCodec
    rerank: Callable[[Iterator[Translation]], Iterator[Translation]]  # chooses samples of --mbr
    splitter: SentenceSplitter | None = None
    keeper: Keeper | None = None  # of --keep and --markup

    @staticmethod
    @contextlib.contextmanager
    def load(request: Request) -> Iterator[Session]:
        """Load the models for the duration of the block."""
        from fairseq_ext.decoding.loading import opened
        from fairseq_ext.text import placeholders
        from fairseq_ext.text.sentences import sentence_splitter

        keeper = placeholders.keeper(request.keep, request.markup)
        languages = request.src, request.tgt
        with opened(request.path, request.data, languages, request.search.search) as model:
            src, tgt = model.translator.src, model.translator.tgt
            constrained = request.search.constraints is not None
            codec = text_options.chosen_codec(
                request.text, src, tgt, model.folders, constraints=constrained
            )
            splitter = sentence_splitter(src, tgt) if request.split_sentences else None
            model.versions.require_unchanged()
            rerank = _reranker(request.search)
            yield Session(request, model.translator, codec, rerank, splitter, keeper)

    def translate_all(self) -> Iterator[Translation]:
        """Translate all input in order."""
        from fairseq_ext.decoding import stream

        request = self.request
        if request.lines is not None:
            raw = [os.fsencode(f"{line}\n") for line in request.lines]
            yield from self.translate(raw, "the command line")
        elif request.input is None:
            name = "standard input"
            yield from self.translate(stream.unmarked(_standard_input().buffer, name), name)
        before = end = 0
        for path in request.input or ():
            with path.open("rb") as raw:
                for translation in self.translate(raw, str(path), before=before):
                    yield translation
                    end = translation.line
            before = end

    def translate_part(self, part: Part, out: IO[str], details: IO[str] | None) -> None:
        """Write the translations of a part of the input."""
        place = {"first": part.first, "before": part.before}
        self.write(self.translate(part.read(), str(part.path), **place), out, details)

    def translate(
        self, raw: Iterable[bytes], name: str, *, first: int = 1, before: int = 0
    ) -> Iterator[Translation]:
        """Translate lines of bytes; see :func:`fairseq_ext.decoding.stream.translations`."""
        from fairseq_ext.decoding import stream

        search = self.request.search
        translations = stream.translations(
            stream.decoded(raw, name),
            self.translator,
            self.codec,
            name=name,
            first=first,
            before=before,
            buffer=BUFFER if search.buffer_size is None else search.buffer_size,
            skip_long=search.skip_long,
            splitter=self.splitter,
            keeper=self.keeper,
        )
        return self.rerank(translations)

    def write(
        self, translations: Iterable[Translation], out: IO[str], details: IO[str] | None
    ) -> int:
        """Write translations, and their details as JSON; return the number of the last line."""
        number = 0
        # An untrusted dictionary may have tokens that control a terminal.
        shown = printable if out.isatty() else str
        for translation in translations:
            number = translation.line
            out.writelines(_rows(translation, self.request.search.nbest or 1, shown))
            out.flush()
            if details is not None:
                details.write(json.dumps(_as_dict(translation), ensure_ascii=False) + "\n")
        return number


def _reranker(search: SearchOptions) -> Callable[[Iterator[Translation]], Iterator[Translation]]:
    if search.mbr is None:
        return lambda translations: translations
    from fairseq_ext.decoding.mbr import best_agreeing
    from fairseq_ext.decoding.mbr_utilities import build_utility

    utility = build_utility(search.utility or search_options.SAMPLES["utility"])
    return lambda translations: best_agreeing(translations, utility)


def _rows(translation: Translation, nbest: int, shown: Callable[[str], str]) -> Iterator[str]:
    if nbest == 1:
        yield shown(translation.texts[0]) + "\n"
        return
    scores = [candidate.score for candidate in translation.candidates] or [0.0]
    for rank, (text, score) in enumerate(zip(translation.texts, scores, strict=True), start=1):
        yield f"{translation.line}\t{rank}\t{score:.4f}\t{shown(text)}\n"


def _as_dict(translation: Translation) -> dict[str, Any]:
    # An empty line has a text without a candidate.
    pairs = zip(translation.texts, translation.candidates, strict=False)
    return {
        "line": translation.line,
        "source": translation.source,
        "translations": [
            {"text": text, "tokens": candidate.tokens, "score": candidate.score}
            for text, candidate in pairs
        ],
    }


def _standard_input() -> IO[str]:
    if sys.__stdin__ is None:
        raise ConfigError("standard input is closed; name a file with text by `--input`.")
    if sys.stdin.isatty():
        print("Type text, a sentence a line; Ctrl-D ends it.", file=sys.stderr)
    return sys.stdin


def _standard_output() -> IO[str]:
    if sys.__stdout__ is None:
        raise ConfigError("standard output is closed; name a file for the text by `--output`.")
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    return sys.stdout


def _summary(translator: Translates, count: int, seconds: float) -> str:
    tokens = translator.counts
    unknown = f", {tokens.unknown:,} of {tokens.source:,} source tokens unknown"
    return (
        f"{count:,} {'line' if count == 1 else 'lines'} in {seconds:.1f} s "
        f"({tokens.target / max(seconds, 1e-9):,.0f} tokens/s)"
        f"{unknown if tokens.unknown else ''}"
    )
