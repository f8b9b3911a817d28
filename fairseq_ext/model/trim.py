"""Make a bundle smaller: keep only the symbols of its dictionaries that some texts need.

Embeddings and output projections have a row for each symbol of a dictionary. In a model of many
languages these rows are most of the model's bytes. Tokens that stay keep their logits; only the
softmax runs over fewer tokens.
"""

import dataclasses
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask

from fairseq_ext.checkpoints import bundle, dictionaries, layout
from fairseq_ext.engine import shortlist
from fairseq_ext.generation.translation_ext import Affixes
from fairseq_ext.model import write
from fairseq_ext.text import pipeline
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.reading import lines
from fairseq_ext.utils.errors import ConfigError, DataError


def trim(source: bundle.Bundle, texts: Sequence[Path], output: Path) -> str:
    """Copy a bundle, with only the symbols that some texts need; after an error there is no copy.

    The copy also keeps fairseq's special symbols, the model's language tokens, all tokens of a
    single character, and the tokens that the bundle's shortlist allows in every translation. If
    both languages share a dictionary, they still do in the copy.

    ``texts`` are files of raw text, whose names end in their language, such as ``train.es``.
    Return a phrase with the numbers of symbols and the bytes of the weights, before and after.

    Raises:
        ConfigError: a text is not named by a language of the bundle, a language has no text, or
            the texts need all symbols.
        DataError: a text has no token of the dictionary.
    """
    languages = (source.src, source.tgt)
    text = pipeline.find_towards([source.folder], *languages) or Pipeline(*languages)
    before = [dictionaries.symbols(source.folder / f"dict.{code}.txt") for code in languages]
    is_joint = before[0] == before[1]
    tokens = _tokens(texts, text, before)
    task = layout.section(bundle.configuration(source).get("cfg"), "task")
    common = {str(task[name]) for name in Affixes._fields if task.get(name)}
    listed = None
    if (source.folder / bundle.SHORTLIST).is_file():
        listed = shortlist.read(source.folder / bundle.SHORTLIST, *before)
        tokens[1] |= {before[1][number] for number in listed.frequent}
    if is_joint:
        common |= tokens[0] | tokens[1]
    text_of = text.pieces.decode
    after = [
        [
            symbol
            for symbol in symbols
            if symbol in dictionaries.SPECIAL or symbol in needed or len(text_of(symbol)) <= 1
        ]
        for symbols, needed in zip(before, [common | side for side in tokens], strict=True)
    ]
    if after == before:
        raise ConfigError(
            f"{source.folder} has only symbols that these texts need, so nothing can be left out."
        )
    with tempfile.TemporaryDirectory() as scratch:
        shorter = None
        if listed is not None:
            shorter = Path(scratch, bundle.SHORTLIST)
            sources, targets = map(set, after)
            lists = {}
            for symbol, numbers in zip(before[0], listed.lists, strict=True):
                words = [before[1][number] for number in numbers if before[1][number] in targets]
                if words and symbol in sources:
                    lists[symbol] = words
            shortlist.write(shorter, [before[1][number] for number in listed.frequent], lists)
        write.write(
            source.folder,
            source.folder,
            output,
            numbers=source.numbers,
            search=source.search,
            shortlist=shorter,
            card=dataclasses.replace(write.card_of(source), table=""),
            change=lambda model, cfg, task: with_symbols(model, cfg, task, after),
        )
    written = bundle.read(output)
    old, new = (
        (folder / bundle.WEIGHTS).stat().st_size for folder in (source.folder, written.folder)
    )
    rows = [
        f"{len(remaining):,} of {len(symbols):,}"
        for symbols, remaining in zip(before, after, strict=True)
    ]
    counts = f"{rows[0]} source symbols, {rows[1]} target symbols"
    if is_joint:
        counts = f"{rows[0]} symbols"
    return f"{counts}; weights of {new:,} bytes instead of {old:,}"


def _tokens(
    texts: Sequence[Path], text: Pipeline, symbols: Sequence[Sequence[str]]
) -> list[set[str]]:
    """Encode texts; return their source tokens and target tokens, but only those in ``symbols``."""
    languages = (text.src, text.tgt)
    tokens: list[set[str]] = [set(), set()]
    for path in texts:
        endings = [ending[1:] for ending in path.suffixes if ending[1:] in languages]
        if not endings:
            raise ConfigError(
                f"`--for {path}` must be named by its language, one of {text.src} and {text.tgt}, "
                f"such as {path.stem}.{text.src}."
            )
        side = languages.index(endings[-1])
        encode = text.encoder(endings[-1])
        dictionary = {*symbols[side]}.difference(dictionaries.SPECIAL)
        needed = {token for _, line in lines(path) for token in encode(line).split()} & dictionary
        if not needed:
            raise DataError(f"{path} has no token of the model's dictionary for {endings[-1]}.")
        tokens[side] |= needed
    for side, language in enumerate(languages):
        if not tokens[side]:
            raise ConfigError(
                f"`--for` must have text in both languages, but has none in {language}; give "
                f"a file named NAME.{language} too."
            )
    return tokens


@torch.no_grad()
def with_symbols(
    model: BaseFairseqModel, cfg: Any, task: TranslationTask, symbols: Sequence[Collection[str]]
) -> tuple[BaseFairseqModel, TranslationTask]:
    """Build a smaller model, with rows for only some symbols; return the model and its task.

    ``symbols`` are the source symbols and the target symbols to keep. Raise ConfigError if a weight
    does not have a row for each symbol, as in an adaptive softmax.
    """
    words = (task.source_dictionary, task.target_dictionary)
    rows = [
        torch.tensor([number for number, symbol in enumerate(side.symbols) if symbol in staying])
        for side, staying in zip(words, map(set, symbols), strict=True)
    ]
    smaller = type(task)(task.cfg, *map(_dictionary, words, rows))
    small_model = smaller.build_model(cfg.model, from_checkpoint=True)
    state = model.state_dict()
    for name, tensor in small_model.state_dict().items():
        side = int(not name.startswith("encoder."))
        is_table = name in state and state[name].shape[:1] == (len(words[side]),)
        if is_table and state[name].shape != tensor.shape:
            state[name] = state[name][rows[side]]
        if name not in state or state[name].shape != tensor.shape:
            raise ConfigError(
                f"`{name}` of the model does not have a row for each symbol, as in an adaptive "
                "softmax; such a model cannot be trimmed."
            )
    small_model.load_state_dict(state)
    return small_model.eval(), smaller


def _dictionary(words: Dictionary, rows: torch.Tensor) -> Dictionary:
    """Return a dictionary with only the symbols of ``words`` at the indices ``rows``.

    ``rows`` must begin with the indices of fairseq's special symbols.
    """
    smaller = Dictionary()
    for number in rows.tolist()[smaller.nspecial :]:
        smaller.add_symbol(words.symbols[number], n=words.count[number])
    return smaller
