"""Options of the commands that translate: for search, for sampling, and for text.

Most options for search have the names and types of fields of :class:`Search`. The file
``text.json`` beside a model or its data lists the steps by which the training text became tokens,
such as tokenization and lower-casing. Each option for text replaces one of these steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.commands.options import specified
from fairseq_ext.decoding.search import BUFFER, Search
from fairseq_ext.engine import DEFAULT, ENGINES, FAIRSEQ, SHORTLIST_HELP
from fairseq_ext.engine import HELP as ENGINE_HELP
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import add_options, flag, option, require_at_least

if TYPE_CHECKING:
    from fairseq_ext.decoding.stream import TextCodec
    from fairseq_ext.engine.engine_model import SearchDefaults

MODEL_DEFAULTS = ("beam", "lenpen", "max_len_a", "max_len_b")
"""Options for which a model may have defaults."""
SEARCH = ("constraints", "beam", "nbest", "lenpen", "gnmt_lenpen")  # options of a search
DRAWS = ("epsilon_sampling", "sampling_topk", "seed")  # options of samples
EPSILON, UTILITY = 0.02, "chrf"  # defaults of --epsilon-sampling and --utility with --mbr
OPTIONS_OF_MODE = {"search": SEARCH, "sampling": ("nbest", *DRAWS), "mbr": (*DRAWS, "utility")}
"""The options in ``SEARCH``, ``DRAWS`` and ``utility`` that have an effect in each mode."""
TEXT_FLAGS = ("normalize", "tokenize", "escape", "aggressive", "lowercase")


def _number(default: float, text: str) -> Any:
    """Declare an option that is None if absent; its help is ``text (default)``.

    ``default`` is the value for models that set no default of their own.
    """
    return option(None, f"{text} ({default})")


@dataclass(frozen=True)
class SearchOptions:
    """The options of search and sampling; :meth:`search` replaces None by a default."""

    beam: int | None = _number(Search.beam, "beam size")
    nbest: int | None = _number(Search.nbest, "translations for each line")
    lenpen: float | None = _number(
        Search.lenpen, "length penalty: scores are divided by length to this power"
    )
    gnmt_lenpen: float | None = _number(
        Search.gnmt_lenpen, "α of GNMT's length penalty, which replaces --lenpen; 0: off"
    )
    max_len_a: float | None = _number(
        Search.max_len_a,
        "longest translation in tokens: --max-len-b plus N times the number of source tokens",
    )
    max_len_b: int | None = _number(Search.max_len_b, "constant part of the limit in --max-len-a")
    max_tokens: int | None = _number(
        Search.max_tokens, "most source tokens in a batch, padding included"
    )
    constraints: str | None = option(
        None,
        "lines may have, after tabs, words that their translations must contain: in this order "
        "(ordered, also if no value is given) or in any order (unordered)",
        nargs="?",
        const="ordered",
        choices=("ordered", "unordered"),
    )
    buffer_size: int | None = _number(BUFFER, "lines to read before translating; 1: line by line")
    skip_long: bool = option(False, "write an empty line for each line that is too long")
    engine: str = option(DEFAULT, f"{ENGINE_HELP} (%(default)s)", choices=(FAIRSEQ, *ENGINES))
    shortlist: Path | None = option(None, SHORTLIST_HELP)
    fp16: bool = option(False, "half precision, for GPUs")
    cpu: bool = option(False, "use the CPU even if there is a GPU")
    sampling: bool = option(
        False, "sample one or --nbest translations of each line, as for back-translation"
    )
    mbr: int | None = option(
        None,
        "draw N samples of each line, and write the one that agrees best with all of them "
        "(minimum Bayes risk); lower --max-tokens if memory runs out",
    )
    epsilon_sampling: float | None = option(
        None,
        "sample only tokens of at least this probability "
        f"({EPSILON} with --mbr; 0 with --sampling or --sampling-topk)",
    )
    sampling_topk: int | None = _number(
        Search.sampling_topk, "sample only the N most probable tokens; 0: all"
    )
    seed: int | None = _number(Search.seed, "seed of the samples")
    utility: str | None = option(
        None,
        "measure of agreement for --mbr: chrf, bleu, comet:MODEL (see `score --metric`; the "
        "variable FAIRSEQ_EXT_METRIC_PYTHON names the Python that has COMET), or mbrs:METRIC of "
        f"the library mbrs, such as mbrs:bleurt ({UTILITY})",
        metavar="U",
    )

    def check(self) -> None:
        """Raise ConfigError for an option without effect, such as ``--seed`` in a search."""
        mode = "sampling" if self.sampling else "search" if self.mbr is None else "mbr"
        if self.mbr is not None:
            require_at_least(self, mbr=1)
        if self.sampling and self.mbr is not None:
            raise ConfigError("`--sampling` does not go with `--mbr`, which samples by itself.")
        for name in specified(self, (*SEARCH, *DRAWS, "utility")):
            if name in OPTIONS_OF_MODE[mode]:
                continue
            fault = "goes with `--mbr`, which is missing"
            if name in SEARCH:
                fault = f"does not go with `--{mode}`, which samples instead of searching"
            elif name in DRAWS:
                fault = "goes with `--mbr` or `--sampling`, which are missing"
            raise ConfigError(f"`{flag(name)}` {fault}.")

    def search(self, model_defaults: SearchDefaults) -> Search:
        """Return the settings of a search, with a default for each option that is None.

        The default is the model's, in ``model_defaults``, or else that of :class:`Search`. With
        ``--mbr`` and no ``--sampling-topk``, the default of ``--epsilon-sampling`` is
        :data:`EPSILON`. Raise ConfigError as :meth:`check` does.
        """
        self.check()
        names = [name for name in vars(self) if hasattr(Search, name)]
        values = {**model_defaults, **specified(self, names)}
        if self.sampling or self.mbr is not None:
            count = self.mbr or values.get("nbest", Search.nbest)
            values |= {"sampling": True, "beam": count, "nbest": count, "lenpen": Search.lenpen}
        if self.mbr is not None and not self.sampling_topk:
            values.setdefault("epsilon_sampling", EPSILON)
        return Search(**values)


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options of :class:`SearchOptions` in two groups, for search and for samples."""
    sampling = ("sampling", "mbr", *DRAWS, "utility")
    search = SearchOptions.__dataclass_fields__.keys() - sampling
    add_options(parser.add_argument_group("search"), SearchOptions, search)
    add_options(parser.add_argument_group("samples instead of search"), SearchOptions, sampling)


@dataclass(frozen=True)
class TextOptions:
    """Options for the steps between text and tokens; None leaves a step to ``text.json``."""

    normalize: bool | None = option(None, "normalize punctuation first, as Moses does")
    tokenize: bool | None = option(None, "split into Moses tokens, and detokenize the translation")
    escape: bool | None = option(None, "write XML entities in tokens, as Moses does by default")
    aggressive: bool | None = option(None, "split words at hyphens, which become the token @-@")
    lowercase: bool | None = option(None, "lower-case the source")
    keep_tokens: bool = option(False, "leave the translation as tokens")
    bpe_codes: Path | None = option(None, "file of merges from subword-nmt or fastBPE")
    remove_bpe: bool = option(False, "join subword pieces (`@@ `), if the input has them")


def add_text_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "how the training corpus was prepared",
        "Needed only where neither the run nor the data has a text.json, or to override it.",
    )
    add_options(group, TextOptions)


def chosen_codec(
    options: TextOptions, src: str, tgt: str, folders: Iterable[Path], constraints: bool = False
) -> TextCodec:
    """Make the codec, which turns a line of text into tokens and a line of tokens into text.

    The steps are those of the first ``text.json`` in ``folders``, but each of the ``options`` that
    is set replaces a step. With ``constraints``, a line may have target texts after the source,
    separated by tabs, that its translation must contain. Raise ConfigError for ``--keep-tokens`` if
    no step makes Moses tokens.
    """
    from fairseq_ext.decoding.stream import TextCodec
    from fairseq_ext.text import pipeline

    saved = pipeline.find_towards(folders, src, tgt)
    overrides = specified(options, TEXT_FLAGS)
    if codes := options.bpe_codes:
        from fairseq_ext.text.subwords import kind_of_merges

        overrides |= {"subwords": kind_of_merges(codes), "files": (codes,)}
    elif options.remove_bpe:
        overrides |= {"subwords": "joined", "files": ()}
    if overrides.get("tokenize") is False:
        overrides = {"escape": False, "aggressive": False, **overrides}
    steps = replace(saved or pipeline.Pipeline(src, tgt), **overrides)
    if saved is not None and steps != saved:
        print(
            f"options replace steps of text.json ({saved.describe()}): {steps.describe()}",
            file=sys.stderr,
        )
    if options.keep_tokens and not steps.tokenize:
        raise ConfigError("`--keep-tokens` goes with `--tokenize`, which is missing.")
    decode = steps.pieces.decode if options.keep_tokens else steps.decoder()
    codec = TextCodec(steps.encoder(), decode)
    return codec.with_constraints(steps.encoder(tgt)) if constraints else codec
