"""``fairseq-ext demo``: serve a web page on which several models translate one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.commands import options, text_options
from fairseq_ext.commands.text_options import TextOptions
from fairseq_ext.decoding.search import DATA_HELP, SearchOptions
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import wrong_value
from fairseq_ext.utils.option_fields import add_options, from_args, option, require_at_least

if TYPE_CHECKING:
    from fairseq_ext.demo.systems import Answer, System, SystemFiles


@dataclass(frozen=True)
class Request:
    """The command-line options of ``demo``, a field for each."""

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
    max_words: int = option(60, "longest sentence in words (%(default)s)")
    host: str = option("127.0.0.1", "address to serve on (%(default)s)")
    port: int = option(7860, "port to serve on; 0: any free one (%(default)s)")
    split_sentences: bool = option(
        False, "translate each sentence of a text alone, and join the translations"
    )
    keep_addresses: bool = option(
        True, "keep URLs, e-mail addresses and emoji as they are (default: yes)"
    )
    search: SearchOptions = field(default_factory=SearchOptions)
    text: TextOptions = field(default_factory=TextOptions)


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "demo",
        help="serve a local web page where models translate a sentence side by side",
        description="Serve a page on which you type a sentence, choose systems, and see their "
        "translations, with a heat map of attention if a model has it. Ctrl-C ends it.",
        example="fairseq-ext demo muse=tatoeba-es-en bmt=tatoeba-es-en-bmt-1",
    )
    add_options(parser, Request)
    add_options(parser, SearchOptions, ("beam", "lenpen", "cpu"))
    text_options.add_text_options(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    request = from_args(Request, args)
    require_at_least(request, max_words=1)
    from tqdm import tqdm

    from fairseq_ext.demo import systems as demo_systems
    from fairseq_ext.utils import address

    named = demo_systems.parse_systems(request.systems, request.data)
    listener = address.listen(request.host, request.port)
    with options.ended_by_sigterm():
        extras.need("matplotlib")
        from fairseq_ext.demo import page

        with tqdm(named, desc="load", unit=" systems", disable=None) as progress:
            systems = {system.name: load(system, request) for system in progress}

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


def load(named: SystemFiles, request: Request) -> System:
    """Load a system of the command line: its model, search options and text processing."""
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.checkpoints.size import read_size
    from fairseq_ext.decoding.loading import open_model
    from fairseq_ext.demo.systems import System
    from fairseq_ext.text.placeholders import keeper
    from fairseq_ext.text.sentences import UNSPLIT, sentence_splitter

    if not named.data.is_dir():  # checked here, because a bundle would work without this folder
        option = f"--data` or `,data=` of `{named.name}"
        raise wrong_value(option, "a folder of fairseq-preprocess", named.data)
    data = None if bundle.has_program(named.checkpoint) else named.data
    model = open_model(
        [named.checkpoint],
        data,
        (None, None),
        lambda defaults: replace(request.search.search(defaults), attention=True),
    )
    src, tgt = model.translator.src, model.translator.tgt
    folders = (bundle.home(named.checkpoint), named.data)
    text = replace(request.text, bpe_codes=named.codes or request.text.bpe_codes)
    codec = text_options.chosen_codec(text, src, tgt, folders)
    model.versions.require_unchanged()
    size = f"{read_size(named.checkpoint).parameters / 1e6:,.1f} M parameters"
    about = f"{src} → {tgt}, {size}"
    splitter = sentence_splitter(src, tgt) if request.split_sentences else UNSPLIT
    finder = keeper((), markup=False, addresses=request.keep_addresses)
    return System(named.name, model.translator, codec, about, splitter, finder)
