"""The corpus that comes with this package: English and Spanish sentences of tatoeba.org.

118,964 pairs by the members of tatoeba.org, as www.manythings.org/anki publishes them, under
CC BY 2.0 FR. ``data/README.md`` says more; whoever passes the text on keeps the attribution.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random

from fairseq_ext.corpora import SPLITS, split_pairs
from fairseq_ext.text.cleaning import plain
from fairseq_ext.text.writing import write_all
from fairseq_ext.utils.errors import ConfigError, DataError

PAIRS = Path(__file__).with_name("data") / "tatoeba_es_en.tsv.xz"
ATTRIBUTION = PAIRS.with_name("README.md")
SIZE = 118_964
LANGUAGES = ("en", "es")  # of its columns


def read_pairs() -> list[tuple[str, str]]:
    """Read all pairs, English and Spanish, in the order of the file: from short to long."""
    with lzma.open(PAIRS, "rt", encoding="utf-8", newline="\n") as file:
        lines = (line.rstrip("\n").split("\t") for line in file)
        return [(plain(english), plain(spanish)) for english, spanish in lines]


def sample(sizes: Mapping[str, int]) -> dict[str, list[tuple[str, str]]]:
    """Draw small splits at equal distances, so that each has short and long sentences.

    No sentence of either language comes twice, in one split or in two.

    Args:
        sizes: pairs of each split.

    Raises:
        DataError: more pairs than there are distinct sentences.
    """
    distinct: list[tuple[str, str]] = []
    seen: set[str] = set()
    for pair in read_pairs():
        if seen.isdisjoint(pair):
            seen.update(pair)
            distinct.append(pair)
    total = sum(sizes.values())
    if total > len(distinct):
        raise DataError(
            f"a sample of {total:,} pairs is more than the {len(distinct):,} pairs of different "
            "sentences; ask for fewer."
        )
    drawn = [distinct[place * len(distinct) // total] for place in range(total)]
    Random(1).shuffle(drawn)
    rest = iter(drawn)
    return {split: list(itertools.islice(rest, size)) for split, size in sizes.items()}


def split_arguments(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of ``corpus pairs`` that split this corpus in the direction of ``args``."""
    from fairseq_ext.corpora.command_lines import COMMAND_LINES

    parser = argparse.ArgumentParser()
    COMMAND_LINES["split_pairs"].add(parser)
    columns = ",".join(str(LANGUAGES.index(side) + 1) for side in (args.src, args.tgt))
    words = [PAIRS, "--columns", columns, "--src-lang", args.src, "--tgt-lang", args.tgt]
    words += ["--valid", args.valid, "--test", args.test, "--out", args.out]
    return parser.parse_args([*map(str, words)])


def run(args: argparse.Namespace) -> str:
    """Write the corpus, split without leaks, or a sample of it; returns a summary.

    Args:
        args: of :func:`fairseq_ext.corpora.command_lines.add_tatoeba`.

    Raises:
        ConfigError: a language of other corpora.
        DataError: more pairs are asked for than there are.
    """
    if {args.src, args.tgt} != {*LANGUAGES}:
        raise ConfigError(
            f"`--src` and `--tgt` must be es and en, or en and es, but are `{args.src}` and "
            f"`{args.tgt}`."
        )
    if args.sample is None:
        summary = split_pairs.run(split_arguments(args))
        shutil.copyfile(ATTRIBUTION, args.out / "LICENCE.md")
        return summary
    splits = sample(dict(zip(SPLITS, args.sample, strict=True)))
    write_all(
        args.out,
        {
            f"{split}.{side}": [pair[LANGUAGES.index(side)] for pair in pairs]
            for split, pairs in splits.items()
            for side in (args.src, args.tgt)
        },
    )
    shutil.copyfile(ATTRIBUTION, args.out / "LICENCE.md")
    return ", ".join(f"{split} {len(pairs):,} pairs" for split, pairs in splits.items())
