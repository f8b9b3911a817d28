"""A parallel corpus for any two languages, without a download, from locale data.

Dates, times, amounts, measures, relative times, number words, territories, languages and
currencies, alone and in lists, as Babel (Unicode CLDR) and num2words write them in each
language.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random

from tqdm import tqdm

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.locale_inventory import Language, inventory, language
from fairseq_ext.corpora.locale_sentences import sentence, usable_kinds
from fairseq_ext.text.cleaning import plain
from fairseq_ext.text.writing import write_all
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.files import sha256

# So many draws in a row that bring nothing new mean that nothing new is left.
PATIENCE = 10_000


@dataclass(frozen=True)
class Pair:
    """One sentence in both languages, and the kinds of phrase in it."""

    source: str
    target: str
    kinds: frozenset[str]


def pairs(src: str, tgt: str, seed: int = 1, max_words: int = 25) -> Iterator[Pair]:
    """Sentence pairs without end, always the same for a seed and the libraries' versions.

    No source sentence comes twice, however it is capitalized.

    Args:
        src, tgt: language codes, such as ``en`` and ``pt_BR``.
        seed: of the random generator.
        max_words: pairs with more words (split at spaces) on either side are left out.

    Raises:
        DataError: an unknown language, or twice the same; and while drawing, ``max_words``
            is too small for any new sentence.
    """
    if src == tgt:
        raise ConfigError(f"source and target language are the same (`{src}`); choose two.")
    return _draw((language(src), language(tgt)), seed, max_words)


def _draw(sides: tuple[Language, Language], seed: int, max_words: int) -> Iterator[Pair]:
    known = inventory(*sides)
    kinds, _ = usable_kinds(known, *sides)
    rng, seen, idle = Random(seed), set(), 0
    while idle < PATIENCE:
        used, phrase = sentence(rng, kinds, known)
        source, target = (plain(phrase(side)) for side in sides)
        key = source.casefold()
        longest = max(source.count(" "), target.count(" ")) + 1
        if not source or not target or longest > max_words or key in seen:
            idle += 1
            continue
        idle = 0
        seen.add(key)
        yield Pair(source, target, frozenset(used))
    raise DataError(
        f"no new sentence in {PATIENCE} draws after {len(seen)} pairs; ask for fewer "
        f"or raise `max_words` ({max_words})."
    )


def corpus(
    src: str, tgt: str, sizes: dict[str, int], seed: int = 1, max_words: int = 25
) -> dict[str, list[Pair]]:
    """The first pairs of the stream as test set, the next as validation set, the rest to train.

    In this order a larger training set keeps the test set as it was.

    Args:
        sizes: number of pairs of ``train``, ``valid`` and ``test``.
    """
    stream = pairs(src, tgt, seed, max_words)
    bar = tqdm(
        total=sum(sizes.values()), desc=f"{src}-{tgt}", unit=" pairs", file=sys.stderr, disable=None
    )
    with bar:
        taken: dict[str, list[Pair]] = {}
        for split in ("test", "valid", "train"):
            taken[split] = []
            for _ in range(sizes[split]):
                taken[split].append(next(stream))
                bar.update()
    return taken


def write(folder: Path, taken: dict[str, list[Pair]], options: dict[str, object]) -> dict:
    """Write ``{train,valid,test}.{src,tgt}`` and ``manifest.json``; returns the manifest."""
    src, tgt = str(options["src"]), str(options["tgt"])
    files = {}
    for split in SPLITS:
        files[f"{split}.{src}"] = [pair.source for pair in taken[split]]
        files[f"{split}.{tgt}"] = [pair.target for pair in taken[split]]
    write_all(folder, files)
    sides = language(src), language(tgt)
    counts = Counter(kind for split in SPLITS for pair in taken[split] for kind in pair.kinds)
    manifest = {
        "options": options,
        "libraries": {name: version(name) for name in ("babel", "num2words")},
        "sha256": {name: sha256(folder / name) for name in files},
        "pairs": {split: len(taken[split]) for split in SPLITS},
        "pairs with kind": dict(sorted(counts.items())),
        "left out": usable_kinds(inventory(*sides), *sides)[1],
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False, sort_keys=True)
    write_all(folder, {"manifest.json": [text]})
    return manifest


def summary(taken: dict[str, list[Pair]], src: str, tgt: str, manifest: dict) -> str:
    """A table of pairs, words and distinct words, and the kinds of phrase."""
    rows = [f"{'split':6} {'pairs':>7} {'side':>6} {'words':>8} {'types':>7} {'words/line':>11}"]
    for split in SPLITS:
        for code, lines in (
            (src, [pair.source for pair in taken[split]]),
            (tgt, [pair.target for pair in taken[split]]),
        ):
            words = [word for line in lines for word in line.split()]
            mean = len(words) / max(1, len(lines))
            rows.append(
                f"{split:6} {len(lines):7} {code:>6} {len(words):8} {len({*words}):7} {mean:11.1f}"
            )
    kinds = sorted(manifest["pairs with kind"].items(), key=lambda item: (-item[1], item[0]))
    rows.append("kinds: " + ", ".join(f"{kind} {count}" for kind, count in kinds))
    rows += [f"left out: {kind}: {why}" for kind, why in manifest["left out"].items()]
    return "\n".join(rows)


def run(args: argparse.Namespace) -> str:
    """Do what the options say; returns the summary.

    Raises:
        ConfigError: twice the same language.
        DataError: an unknown language, or no such number of different sentences.
    """
    options = {name: value for name, value in vars(args).items() if name != "out"}
    sizes = {split: options[split] for split in SPLITS}
    taken = corpus(args.src, args.tgt, sizes, args.seed, args.max_words)
    manifest = write(args.out, taken, options)
    return summary(taken, args.src, args.tgt, manifest)
