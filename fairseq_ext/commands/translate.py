"""``fairseq-ext translate``: lines of text in, translated lines out."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers

if TYPE_CHECKING:
    from fairseq_ext.translating.stream import Translation
    from fairseq_ext.translating.translator import Translator


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "translate",
        help="translate a file or standard input with trained models",
        description="Translate text, a sentence per line: one line out for each line in, in the "
        "same order. With --nbest above 1 each translation is a line of four columns, separated "
        "by tabs: line number (from 1), rank (from 1), score (log-probability in base 2, as of "
        "fairseq-generate), text.",
    )
    option = parser.add_argument
    option(
        "data", type=Path, metavar="DATA", help="folder of fairseq-preprocess with the dictionaries"
    )
    option(
        "--path",
        type=Path,
        nargs="+",
        required=True,
        metavar="CHECKPOINT",
        help="trained model of any architecture; several of them vote",
    )
    option("--input", type=Path, metavar="FILE", help="text to translate (standard input)")
    option("-o", "--output", type=Path, metavar="FILE", help="write there (standard output)")
    option("--src", metavar="LANG", help="source language (the one trained on)")
    option("--tgt", metavar="LANG", help="target language (the one trained on)")
    _add_wording(parser.add_argument_group("how the training corpus was prepared"))
    _add_search(parser.add_argument_group("search"))
    options.add_json(parser, "source, translations, tokens and scores, a line each,")
    parser.set_defaults(run=_translate)


def _add_wording(group: Any) -> None:
    option = group.add_argument
    option("--normalize", action="store_true", help="Moses' normalisation of punctuation first")
    option("--tokenize", action="store_true", help="Moses tokens before, and undone after")
    option("--escape", action="store_true", help="with XML entities in tokens, Moses' default")
    option("--aggressive", action="store_true", help="with hyphens split off as @-@")
    option("--keep-tokens", action="store_true", help="leave the translation as tokens")
    option("--lowercase", action="store_true", help="lower-case the source")
    option("--bpe-codes", type=Path, metavar="FILE", help="subword-nmt's merges")
    option("--remove-bpe", action="store_true", help="join pieces (`@@ `) where the input has them")


def _add_search(group: Any) -> None:
    switches = {
        "--skip-long": "leave lines empty that are too long, and go on",
        "--fp16": "half precision, for GPUs",
        "--cpu": "leave a GPU alone",
    }
    numbers = {
        "--beam": (5, "hypotheses followed"),
        "--nbest": (1, "translations of a line"),
        "--lenpen": (1.0, "length penalty"),
        "--max-len-a": (0.0, "at most this times the source tokens, plus --max-len-b, are written"),
        "--max-len-b": (200, "see --max-len-a"),
        "--max-tokens": (4000, "source tokens in a batch"),
        "--buffer-size": (2000, "lines read before they are translated; 1 to converse"),
    }
    for name, (default, text) in numbers.items():
        kind = {"type": type(default), "default": default, "metavar": "N"}
        group.add_argument(name, **kind, help=f"{text} (%(default)s)")
    for name, text in switches.items():
        group.add_argument(name, action="store_true", help=text)


def _translate(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING)  # fairseq's import would choose DEBUG
    from fairseq_ext import files, register, text

    register()
    from fairseq_ext.guards.commands import one_message
    from fairseq_ext.translating.translator import Search, Translator

    lines = None
    if args.input is not None:
        lines = text.check_text(args.input, empty_lines=True, max_tokens=None)
    names = ("beam", "nbest", "lenpen", "max_len_a", "max_len_b", "max_tokens", "fp16", "cpu")
    search = Search(**{name: getattr(args, name) for name in names})
    with one_message(), contextlib.ExitStack() as stack:
        translator = Translator(args.data, args.path, args.src, args.tgt, search)
        out = stack.enter_context(files.atomic_write(args.output)) if args.output else _stdout()
        details = stack.enter_context(files.atomic_write(args.json)) if args.json else None
        began = time.monotonic()
        try:
            count = _write_all(_found(args, translator, lines), out, details, args.nbest)
        except BrokenPipeError:  # whoever read the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(_closing(translator, count, time.monotonic() - began), file=sys.stderr)
    return 0


def _found(
    args: argparse.Namespace, translator: Translator, lines: int | None
) -> Iterator[Translation]:
    """The translations, with a progress bar."""
    from tqdm import tqdm

    from fairseq_ext.translating import stream
    from fairseq_ext.translating.wording import Wording

    wording = Wording(
        translator.src,
        translator.tgt,
        normalize=args.normalize,
        lowercase=args.lowercase,
        tokenize=args.tokenize,
        escape=args.escape,
        aggressive=args.aggressive,
        codes=args.bpe_codes,
        join=args.remove_bpe,
        keep_tokens=args.keep_tokens,
    )
    name = str(args.input or "standard input")
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(args.input.open("rb")) if args.input else sys.stdin.buffer
        found = stream.translations(
            stream.decoded(raw, name),
            translator,
            wording,
            name=name,
            buffer=args.buffer_size,
            skip_long=args.skip_long,
        )
        yield from tqdm(found, desc="translate", total=lines, unit=" lines", file=sys.stderr)


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


def _stdout() -> IO[str]:
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    return sys.stdout


def _closing(translator: Translator, count: int, seconds: float) -> str:
    tokens = translator.counts
    unknown = f", {tokens.unknown:,} of {tokens.source:,} source tokens unknown"
    return (
        f"{count:,} lines in {seconds:.1f} s ({tokens.target / max(seconds, 1e-9):,.0f} tokens/s)"
        f"{unknown if tokens.unknown else ''}"
    )
