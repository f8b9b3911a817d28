"""The corpus that comes with this package: English and Spanish sentences of tatoeba.org.

The corpus has 118,964 pairs by the members of tatoeba.org, as www.manythings.org/anki publishes
them, under CC BY 2.0 FR. If you pass the text on, keep the attribution; see ``data/README.md``.
"""

import itertools
import json
import lzma
import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.command_lines import TatoebaOptions
from fairseq_ext.corpora.streams import write_pairs
from fairseq_ext.text.cleaning import plain
from fairseq_ext.utils.errors import ConfigError, DataError

PAIRS = Path(__file__).with_name("data") / "tatoeba_es_en.tsv.xz"
ATTRIBUTION = PAIRS.with_name("README.md")
HELD_OUT = PAIRS.with_name("tatoeba_es_en.held_out.json")
"""The rows of ``valid`` and ``test``, drawn by ``preprocess/shipped_text.py``."""
LANGUAGES = ("en", "es")  # languages of the columns
SIZES = {"valid": 1000, "test": 1500}  # pairs by default


def read_pairs() -> list[tuple[str, str]]:
    """Read all pairs, English and Spanish, in the file's order, from short to long."""
    with lzma.open(PAIRS, "rt", encoding="utf-8", newline="\n") as file:
        lines = (line.rstrip("\n").split("\t") for line in file)
        return [(plain(english), plain(spanish)) for english, spanish in lines]


def sample(sizes: Mapping[str, int]) -> dict[str, list[tuple[str, str]]]:
    """Draw splits of the ``sizes`` from the corpus, each with short and long sentences.

    No sentence of either language occurs twice, within a split or in two splits. Sizes are refused
    if too few pairs have distinct sentences.
    """
    distinct: list[tuple[str, str]] = []
    sentences: set[str] = set()
    for pair in read_pairs():
        if sentences.isdisjoint(pair):
            sentences.update(pair)
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


def split(sizes: Mapping[str, int]) -> dict[str, list[tuple[str, str]]]:
    """Split the corpus as for the models that come with the package.

    Complete groups of near-duplicates (:mod:`~fairseq_ext.corpora.near_duplicates`) are held out,
    so no training sentence is a near-duplicate of a held-out sentence. ``valid`` and ``test`` each
    have their own held-out pairs, of which as many are drawn as ``sizes`` says. The rest are in no
    split. Raise DataError if a size is larger than the number of its split's held-out pairs.
    """
    pairs = read_pairs()
    held_out = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    hidden = {pairs[row] for rows in held_out.values() for row in rows}
    splits = {"train": [pair for pair in pairs if pair not in hidden]}
    for name, rows in held_out.items():
        if sizes[name] > len(rows):
            raise DataError(
                f"`--{name} {sizes[name]}` is more than the {len(rows):,} pairs that are held out; "
                "ask for fewer."
            )
        # Drawn evenly, because the rows are sorted from short to long.
        drawn_rows = [rows[place * len(rows) // sizes[name]] for place in range(sizes[name])]
        splits[name] = [pairs[row] for row in drawn_rows]
    return splits


def run(options: TatoebaOptions) -> str:
    """Write the corpus, split without leaks, or a sample of it; return a summary."""
    held_out = {"valid": options.valid, "test": options.test}
    if options.sample is None:
        splits = split({name: SIZES[name] if n is None else n for name, n in held_out.items()})
    elif set_options := [f"`--{name}`" for name, n in held_out.items() if n is not None]:
        raise ConfigError(f"`--sample` gives all sizes; leave {' and '.join(set_options)} out.")
    else:
        splits = sample(dict(zip(SPLITS, options.sample, strict=True)))
    write_pairs(options.out, splits, LANGUAGES)
    shutil.copyfile(ATTRIBUTION, options.out / "LICENCE.md")
    return ", ".join(f"{name} {len(pairs):,} pairs" for name, pairs in splits.items())
