"""``fairseq-ext translate``: lines of text in, translated lines out."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fairseq_ext.commands import options, translate_options, translate_parts
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.commands.text_options import add_text_options, chosen_codec
from fairseq_ext.decoding.search import BUFFER
from fairseq_ext.utils.errors import ConfigError

if TYPE_CHECKING:
    from fairseq_ext.decoding.parts import Writes
    from fairseq_ext.decoding.search import Translates
    from fairseq_ext.decoding.stream import TextCodec, Translation
    from fairseq_ext.text.parts import Part


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "translate",
        help="translate a file or standard input with trained models",
        description="Translate text, a sentence per line: one line out for each line in, in the "
        "same order. With --nbest above 1 each translation is a line of four columns, separated "
        "by tabs: line number (from 1), rank (from 1), score (log-probability in base 2, as "
        "fairseq-generate prints it), text.",
    )
    option = parser.add_argument
    option(
        "words",
        nargs="*",
        metavar="DATA|TEXT",
        help=f"{options.DATA_HELP}; or text to translate, if the model has dictionaries of its own",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--path",
        type=Path,
        nargs="+",
        metavar="CHECKPOINT",
        help="trained model of any architecture, a packed one, a bundle, the folder of a run, "
        "or ORG/NAME[@REVISION] on the Hugging Face Hub; several checkpoints, or several models "
        "for the engine, vote",
    )
    which.add_argument(
        "--model",
        type=Path,
        metavar="NAME",
        help="a single one of these, or the name of one that comes with the plugin "
        "(folders of models/)",
    )
    option(
        "--input",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="text to translate, of several files in their order (standard input)",
    )
    option("-o", "--output", type=Path, metavar="FILE", help="write there (standard output)")
    option("--src", metavar="LANG", help="source language (the one trained on)")
    option("--tgt", metavar="LANG", help="target language (the one trained on)")
    add_text_options(parser)
    translate_options.add_search(parser.add_argument_group("search"))
    translate_options.add_samples(parser.add_argument_group("samples instead of search"))
    translate_parts.add_part_options(parser.add_argument_group("large texts"))
    option(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write source, translations, tokens and scores as JSON, one line per sentence",
    )
    parser.set_defaults(run=_translate, data=None, text=None)


def _translate(args: argparse.Namespace) -> int:
    # which tells why fairseq translates instead of the engine
    logging.getLogger("fairseq_ext.generation.on_engine").setLevel(logging.INFO)
    from fairseq_ext.utils import files

    translate_parts.check(args)
    _find_models(args)
    _tell_apart(args)
    options.keep_inputs(args)  # again: now it is known what the words are
    if args.parts is not None:
        return translate_parts.run(args, lambda: _lines(args), lambda stack: _parts(args, stack))
    lines = _lines(args)
    with contextlib.ExitStack() as stack:
        translator, codec = _opened(args, stack)
        out = stack.enter_context(files.atomic_write(args.output)) if args.output else _stdout()
        details = stack.enter_context(files.atomic_write(args.json)) if args.json else None
        began = time.monotonic()
        found = _found(args, translator, codec, lines)
        count = _write_all(found, out, details, args.nbest or 1)
        print(_closing(translator, count, time.monotonic() - began), file=sys.stderr)
    return 0


def _find_models(args: argparse.Namespace) -> None:
    """Set ``path`` to where they are, so that a name on the Hub is one commit for all workers.

    Raises:
        ConfigError: no model has the name of ``--model``, or what ``--path`` takes is no model.
    """
    from fairseq_ext.checkpoints import find_model
    from fairseq_ext.decoding.loading import in_run

    name, args.model = args.model, None
    given = args.path or [name]
    if not args.words:
        _require_no_text(path for path in given[1:] if " " in str(path))  # no name on the Hub
    args.path = [in_run(path) for path in given]
    if not args.words:
        _require_no_text(args.path[1:])
    if name is not None and not args.path[0].exists():
        raise ConfigError(
            f"`--model {name}`: there is no such file or folder, nor a model of that name; those "
            f"that come along are {', '.join(find_model.shipped()) or 'none'}."
        )


def _require_no_text(paths: Iterable[Path]) -> None:
    """Refuse text that ``--path`` has taken for models, as it takes all that follows it."""
    for path in paths:
        if not os.path.exists(path):  # noqa: PTH110  # of any text, also a long one
            raise ConfigError(
                f"`--path` takes all that follows it for models, but {path!s:.80} is no file or "
                "folder. Put text to translate before `--path`, or name the model with `--model`."
            )


def _tell_apart(args: argparse.Namespace) -> None:
    """Set ``data``, or ``text`` to the lines, by what the arguments are.

    A worker on Ray gets them when that is done: it has no ``words``.

    Raises:
        ConfigError: they are neither, or there is a file to translate as well.
    """
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.engine.files import is_engine_model

    words, args.words = args.words, []
    if len(words) == 1 and os.path.isdir(words[0]):  # noqa: PTH112  # of any text, also a long one
        args.data = Path(words[0])
    elif words and all(bundle.is_bundle(path) or is_engine_model(path) for path in args.path):
        if args.input is not None:
            raise ConfigError("`--input` does not go with text as an argument; give one of them.")
        args.text = [line for text in words for line in text.split("\n")]
    elif words:
        fault = "DATA must be one folder"
        if len(words) == 1:
            fault = f"{words[0]:.80} is no folder; give the one that fairseq-preprocess wrote"
        raise ConfigError(
            f"{fault}. Text can be an argument where the model is a bundle, or one for the engine, "
            "which have their own dictionaries; for others, `echo TEXT | fairseq-ext translate …`."
        )


def _lines(args: argparse.Namespace) -> int | None:
    """How many lines the input files have, once they are checked."""
    from fairseq_ext import text

    if args.input is None:
        return None
    return sum(text.check_text(path, empty_lines=True, max_tokens=None) for path in args.input)


def _parts(args: argparse.Namespace, stack: contextlib.ExitStack) -> Writes:
    """A function that writes the translations of a part."""
    translator, codec = _opened(args, stack)
    choose = _choice(args)

    def write(part: Part, out: IO[str], details: IO[str] | None) -> None:
        place = {"first": part.first, "before": part.before}
        found = _translations(args, translator, codec, part.read(), str(part.path), **place)
        _write_all(choose(found), out, details, args.nbest or 1)

    return write


def _opened(args: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[Translates, TextCodec]:
    """The models, and what stands between text and their tokens."""
    from fairseq_ext.decoding.loading import opened

    languages = args.src, args.tgt
    search = functools.partial(translate_options.chosen_search, args)
    found = stack.enter_context(opened(args.path, args.data, languages, search))
    src, tgt = found.translator.src, found.translator.tgt
    return found.translator, chosen_codec(args, src, tgt, found.folders)


def _found(
    args: argparse.Namespace, translator: Translates, codec: TextCodec, lines: int | None
) -> Iterator[Translation]:
    """The translations, with a progress bar."""
    from tqdm import tqdm

    bar = {"desc": "translate", "unit": " lines", "file": sys.stderr, "disable": None}
    found = _of_all_inputs(args, translator, codec)
    yield from tqdm(_choice(args)(found), total=lines, **bar)


def _of_all_inputs(
    args: argparse.Namespace, translator: Translates, codec: TextCodec
) -> Iterator[Translation]:
    from fairseq_ext.decoding import stream

    if args.input is None:
        name = "standard input"
        if args.text is not None:
            raw, name = [os.fsencode(f"{line}\n") for line in args.text], "the command line"
        else:
            raw = stream.unmarked(_stdin().buffer, name)
        yield from _translations(args, translator, codec, raw, name)
        return
    before = 0
    for path in args.input:
        with path.open("rb") as raw:
            for one in _translations(args, translator, codec, raw, str(path), before=before):
                yield one
        before = one.line


def _translations(
    args: argparse.Namespace,
    translator: Translates,
    codec: TextCodec,
    raw: Iterable[bytes],
    name: str,
    **place: int,
) -> Iterator[Translation]:
    from fairseq_ext.decoding import stream

    return stream.translations(
        stream.decoded(raw, name),
        translator,
        codec,
        name=name,
        buffer=BUFFER if args.buffer_size is None else args.buffer_size,
        skip_long=args.skip_long,
        **place,
    )


def _choice(args: argparse.Namespace) -> Callable[[Iterator[Translation]], Iterator[Translation]]:
    """A function that chooses among the samples of ``--mbr``; without it, the identity.

    Raises:
        ConfigError: an unknown utility, or one that is not installed.
    """
    if args.mbr is None:
        return lambda found: found
    from fairseq_ext.decoding.mbr_rerank import best_agreeing
    from fairseq_ext.decoding.mbr_utilities import build_utility

    utility = build_utility(args.utility or translate_options.SAMPLES["utility"][0])
    return lambda found: best_agreeing(found, utility)


def _write_all(
    found: Iterator[Translation], out: IO[str], details: IO[str] | None, nbest: int
) -> int:
    """Write every translation; returns the number of lines."""
    count = 0
    for one in found:
        count = one.line
        out.writelines(_rows(one, nbest))
        out.flush()
        if details is not None:
            details.write(json.dumps(_as_dict(one), ensure_ascii=False) + "\n")
    return count


def _rows(one: Translation, nbest: int) -> Iterator[str]:
    if nbest == 1:
        yield one.texts[0] + "\n"
        return
    scores = [candidate.score for candidate in one.candidates] or [0.0]
    for rank, (text, score) in enumerate(zip(one.texts, scores, strict=True), start=1):
        yield f"{one.line}\t{rank}\t{score:.4f}\t{text}\n"


def _as_dict(one: Translation) -> dict[str, Any]:
    pairs = zip(one.texts, one.candidates, strict=False)  # no candidates: nothing was translated
    return {
        "line": one.line,
        "source": one.source,
        "translations": [
            {"text": text, "tokens": candidate.tokens, "score": candidate.score}
            for text, candidate in pairs
        ],
    }


def _stdin() -> IO[str]:
    if sys.__stdin__ is None:
        raise ConfigError("standard input is closed; name a file with text by `--input`.")
    return sys.stdin


def _stdout() -> IO[str]:
    if sys.__stdout__ is None:
        raise ConfigError("standard output is closed; name a file for the text by `--output`.")
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    return sys.stdout


def _closing(translator: Translates, count: int, seconds: float) -> str:
    tokens = translator.counts
    unknown = f", {tokens.unknown:,} of {tokens.source:,} source tokens unknown"
    return (
        f"{count:,} lines in {seconds:.1f} s ({tokens.target / max(seconds, 1e-9):,.0f} tokens/s)"
        f"{unknown if tokens.unknown else ''}"
    )
