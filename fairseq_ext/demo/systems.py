"""Parse and load the demo's systems: ``[NAME=]MODEL[,data=DIR][,bpe-codes=FILE]``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_ext.base import wings
from fairseq_ext.checkpoints import bundle
from fairseq_ext.checkpoints.describe import read_weights
from fairseq_ext.decoding.loading import MakeSearch, data_of, model_of, opened
from fairseq_ext.decoding.search import Translates
from fairseq_ext.decoding.stream import TextCodec
from fairseq_ext.text.sentences import SentenceSplitter, sentence_splitter
from fairseq_ext.utils.errors import ConfigError

FORM = "[NAME=]MODEL[,data=DIR][,bpe-codes=FILE]"
_PART = re.compile(r",(?=(?:data|bpe-codes)=)")


@dataclass(frozen=True)
class Named:
    """A system in the form of the command line."""

    name: str  # on the page
    checkpoint: Path  # of any architecture, or a bundle
    data: Path  # its folder from fairseq-preprocess
    codes: Path | None = None  # its merges of subword-nmt, or None for the merges of all systems


@dataclass(frozen=True)
class About:
    """The page's description of a system."""

    line: str  # languages and size
    pictures: Mapping[str, bytes] = field(default_factory=dict)  # of the model, PNG by title


@dataclass(frozen=True)
class System:
    """A loaded system."""

    name: str  # on the page
    translator: Translates
    codec: TextCodec
    about: About
    splitter: SentenceSplitter | None = None  # None keeps a text in one piece


MakeCodec = Callable[[Named, Translates], TextCodec]


def parse_systems(arguments: Sequence[str], data: Path | None) -> list[Named]:
    """Parse the systems, in the order given; ``data`` is the folder of those that name none."""
    systems: dict[str, Named] = {}
    for argument in arguments:
        model, *parts = _PART.split(argument)
        name, equals, checkpoint = model.partition("=")
        if not equals:
            checkpoint, name = model, Path(model).name
        values = dict(part.split("=", 1) for part in parts)
        if not (name and checkpoint and all(values.values())) or len(values) < len(parts):
            raise ConfigError(f"A system must be {FORM}, but is `{argument}` instead.")
        if name in systems:
            raise ConfigError(f"A system must have a name of its own, but `{name}` is there twice.")
        path = model_of(Path(checkpoint))
        folder = Path(values["data"]) if "data" in values else data
        if folder is None and bundle.is_bundle(path):
            folder = bundle.home(path)
        try:
            folder = folder or data_of(path)
        except ConfigError:
            raise ConfigError(
                f"`--data` must be the folder of fairseq-preprocess, but is missing; `{argument}` "
                "has no `,data=DIR` of its own, and was trained with one that is not here."
            ) from None
        codes = Path(values["bpe-codes"]) if "bpe-codes" in values else None
        systems[name] = Named(name, path, folder, codes)
    return list(systems.values())


def load(
    named: Named, make_search: MakeSearch, make_codec: MakeCodec, *, split_sentences: bool = False
) -> System:
    """Load a model, once for all sentences, with the functions that make its search and codec."""
    with opened([named.checkpoint], named.data, (None, None), make_search) as opened_model:
        translator, codec = opened_model.translator, make_codec(named, opened_model.translator)
        opened_model.versions.require_unchanged()
    size = f"{read_weights(named.checkpoint).parameters / 1e6:,.1f} M parameters"
    pictures: dict[str, bytes] = {}
    for package, module in wings.declared("PORTRAIT"):
        pictures |= importlib.import_module(f"{package}.{module}").portrait(named.checkpoint)
    about = About(f"{translator.src} → {translator.tgt}, {size}", pictures)
    splitter = sentence_splitter(translator.src, translator.tgt) if split_sentences else None
    return System(named.name, translator, codec, about, splitter)
