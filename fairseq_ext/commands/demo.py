"""``fairseq-ext demo``: serve a web page on which several models translate one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.commands import decoding_options, options
from fairseq_ext.commands.decoding_options import SearchOptions, TextOptions
from fairseq_ext.decoding.search import DATA_HELP, Search
from fairseq_ext.utils import extras
from fairseq_ext.utils.option_fields import add_options, from_args, option, require_at_least

if TYPE_CHECKING:
    from fairseq_ext.decoding.search import Translates
    from fairseq_ext.decoding.stream import TextCodec
    from fairseq_ext.demo.systems import Answer, Named, System

SEARCH = ("beam", "lenpen")


@dataclass(frozen=True)
class Request:
    """The options of a call of ``demo``, one field each."""

    systems: Sequence[str] = option(
        MISSING,
        "checkpoint of any architecture, folder of a run, bundle, name of a model that comes with "
        "the plugin, or ORG/NAME[@REVISION] on the Hugging Face Hub; NAME is shown on the page "
        "(default: the name of the file or folder); data and bpe-codes replace --data and "
        "--bpe-codes for this model",
        "systems",
        nargs="+",
        metavar="[NAME=]MODEL[,data=DIR][,bpe-codes=FILE]",
    )
    data: Path | None = option(None, DATA_HELP, metavar="DIR")
    beam: int | None = None
    lenpen: float | None = None
    max_words: int = option(60, "longest sentence in words (%(default)s)")
    host: str = option("127.0.0.1", "address to serve on (%(default)s)")
    port: int = option(7860, "port to serve on; 0: any free one (%(default)s)")
    split_sentences: bool = option(
        False, "translate each sentence of a text alone, and join the translations"
    )
    keep_addresses: bool = option(
        True, "keep URLs, e-mail addresses and emoji as they are (default: yes)"
    )
    cpu: bool = option(False, "use the CPU even if there is a GPU")
    text: TextOptions = field(default_factory=TextOptions)


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "demo",
        help="serve a local web page where models translate a sentence side by side",
        description="Serve a page on which you type a sentence, choose systems, and see their "
        "translations, with a heat map of attention if a model has it. Ctrl-C ends it.",
    )
    add_options(parser, Request)
    add_options(parser, SearchOptions, SEARCH)
    decoding_options.add_text_options(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    """Serve the page until the process is interrupted."""
    request = from_args(Request, args)
    require_at_least(request, max_words=1)
    from fairseq_ext.utils import memory

    memory.give_back()
    from fairseq_ext.demo import systems as demo_systems
    from fairseq_ext.utils import address

    named = demo_systems.parse_systems(request.systems, request.data)
    listener = address.listen(request.host, request.port)
    with options.ended_by_sigterm():
        extras.need("matplotlib")
        from fairseq_ext.demo import page

        systems = _load(named, request)

        def translate(sentence: str, names: Sequence[str]) -> list[Answer]:
            selection = [system for name, system in systems.items() if name in names]
            return demo_systems.answer(sentence, selection, request.max_words)

        print(address.url(listener), flush=True)
        translator = systems[named[0].name].translator
        sentences = demo_systems.example_sentences(
            named[0].data, translator.src, translator.tgt, request.max_words
        )
        about = {name: system.about for name, system in systems.items()}
        app = page.application(about, translate, request.max_words, sentences, request.host)
        page.serve(app, listener)


def _load(named: Sequence[Named], request: Request) -> dict[str, System]:
    """Load every system, with a progress bar, and return them by name."""
    from tqdm import tqdm

    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.demo.systems import load

    def codec(system: Named, translator: Translates) -> TextCodec:
        folders = (bundle.home(system.checkpoint), system.data)
        languages = (translator.src, translator.tgt)
        return decoding_options.chosen_codec(request.text, *languages, folders, system.codes)

    def search(defaults: Mapping[str, int | float]) -> Search:
        numbers = {**defaults, **decoding_options.specified(request, SEARCH)}
        return Search(**numbers, cpu=request.cpu, attention=True)

    with tqdm(named, desc="load", unit=" systems", disable=None) as shown:
        return {
            system.name: load(
                system,
                search,
                codec,
                split_sentences=request.split_sentences,
                keep_addresses=request.keep_addresses,
            )
            for system in shown
        }
