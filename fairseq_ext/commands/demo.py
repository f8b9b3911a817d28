"""``fairseq-ext demo``: a web page on which several models translate one sentence."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.commands import options, search_options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.commands.text_options import add_text_options, chosen_codec
from fairseq_ext.utils.errors import ConfigError

if TYPE_CHECKING:
    from fairseq_ext.decoding.stream import TextCodec
    from fairseq_ext.decoding.translator import Translator
    from fairseq_ext.demo.answers import Answer
    from fairseq_ext.demo.systems import Named, System

SEARCH = ("beam", "lenpen")


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="a local web page: several models translate one sentence, side by side",
        description="Serve a page on which one types a sentence, chooses systems, and sees their "
        "translations, with a heat map of the attention of models that have it. Ctrl-C ends it.",
    )
    option = parser.add_argument
    option(
        "systems",
        nargs="+",
        metavar="NAME=CHECKPOINT[,data=DIR][,bpe-codes=FILE]",
        help="a name and a trained model of any architecture, the folder of a run, a packed one, a "
        "bundle or ORG/NAME[@REVISION] on the Hugging Face Hub; its own folder and merges where "
        "they are not those of --data and --bpe-codes",
    )
    option(
        "--data",
        type=Path,
        metavar="DIR",
        help=options.DATA_HELP,
    )
    search_options.add(parser, SEARCH)
    option("--max-words", type=int, default=60, metavar="N", help="of a sentence (%(default)s)")
    option("--host", default="127.0.0.1", help="address to serve on (%(default)s)")
    option("--port", type=int, default=7860, metavar="N", help="0: any free one (%(default)s)")
    option("--cpu", action="store_true", help="leave a GPU alone")
    add_text_options(parser)
    parser.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> int:
    if args.max_words < 1:
        raise ConfigError(f"`--max-words` must be at least 1, but is {args.max_words} instead.")
    from fairseq_ext.utils import memory

    memory.give_back()
    from fairseq_ext import register

    register()
    from fairseq_ext.demo import answers
    from fairseq_ext.demo.systems import parse_systems
    from fairseq_ext.utils import address

    named = parse_systems(args.systems, args.data)
    listener = address.listen(args.host, args.port)
    with contextlib.suppress(KeyboardInterrupt), _leaving_nothing():
        _require_gradio()
        from fairseq_ext.demo import examples, page, server

        systems = _load(named, args)

        def translate(sentence: str, wanted: Sequence[str]) -> list[Answer]:
            chosen = [system for name, system in systems.items() if name in wanted]
            return answers.answer(sentence, chosen, args.max_words)

        print(address.url(listener), flush=True)
        first, (one, *_) = named[0], systems.values()
        tried = examples.sentences(
            first.data, one.translator.src, one.translator.tgt, args.max_words
        )
        about = {name: system.about for name, system in systems.items()}
        blocks = page.build(about, translate, args.max_words, tried)
        server.serve(blocks, listener, args.host)
    return 0


@contextlib.contextmanager
def _leaving_nothing() -> Iterator[None]:
    """Keep all temporary files, gradio's too, in a folder removed at the end, as by SIGTERM."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="fairseq-ext-demo-") as folder:
            tempfile.tempdir = folder
            yield
    finally:
        tempfile.tempdir = None  # to be found out again
        signal.signal(signal.SIGTERM, previous)


def _require_gradio() -> None:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read at its import
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"`fairseq-ext demo` needs the library gradio, which cannot be imported ({error}): "
            "`pip install 'fairseq-ext[demo]'`."
        ) from error


def _load(named: Sequence[Named], args: argparse.Namespace) -> dict[str, System]:
    """Every system by its name, with a progress bar."""
    from tqdm import tqdm

    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.decoding.search import Search
    from fairseq_ext.demo.systems import load
    from fairseq_ext.utils.error_messages import one_message

    def codec(one: Named, translator: Translator) -> TextCodec:
        folders = (bundle.home(one.checkpoint), one.data)
        return chosen_codec(args, translator.src, translator.tgt, folders, one.codes)

    search = Search(**search_options.specified(args, SEARCH), cpu=args.cpu, attention=True)
    with (
        one_message(),
        tqdm(named, desc="load", unit=" systems", file=sys.stderr, disable=None) as shown,
    ):
        return {one.name: load(one, search, codec) for one in shown}
