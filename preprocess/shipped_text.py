#!/usr/bin/env python
"""Make the training text of the models that come with the plugin from ``spa-eng.zip``.

    python preprocess/shipped_text.py --archive spa-eng.zip --out text

``reference/`` gets valid and test as plain text. For each direction, ``es-en`` and ``en-es``, all
splits are written as Moses tokens into ``words/`` and as subwords into ``pieces/``, with
``text.json``. ``counts.json`` has the numbers of pairs of each kind, and the number of groups.

- **Held out** are 1,000 pairs for validation and 1,500 for the test, in complete groups of
  near-duplicates (:mod:`fairseq_ext.corpora.near_duplicates`), but no group with a phrase of the
  phrase book.
- **Phrase book**: the pairs of ``shipped_phrases.tsv``, each :data:`PHRASE_COPIES` times, and once
  without final punctuation. Tatoeba has no “No.” → “No.” at all, and “Hola.” only twice.
- **Patterns**: names, towns, clock times, ages and prices in the short sentences of
  ``shipped_patterns.json``.
- **Variants**: copies of some pairs of up to 6 words, without final punctuation. About half of the
  copies have the source in lower case, as people type.
- **Numbers stay complete on the target side**: Moses splits “7:30” into “7 : 30”, from which its
  detokenizer makes “7: 30”. Targets have “7:30” as one word, which subwords may split, so
  translations have “7:30” too. Sources are Moses' tokens without this change.
- **Subwords**: one vocabulary for both languages and both directions.
"""

import argparse
import hashlib
import json
import random
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fairseq_ext.corpora.near_duplicates import draw_groups, group_pairs
from fairseq_ext.corpora.own_text import encode_file, split_into_subwords
from fairseq_ext.corpora.streams import write_pairs
from fairseq_ext.text.cleaning import plain
from fairseq_ext.text.pipeline import Pipeline, load
from fairseq_ext.utils.files import write_all

Pair = tuple[str, str]  # Spanish, English

PHRASES = Path(__file__).with_name("shipped_phrases.tsv")
PATTERNS = Path(__file__).with_name("shipped_patterns.json")
VALID, TEST = 1000, 1500
MERGES = 4000
PHRASE_COPIES = 10
SHORT = 6  # most words on a side of a pair that may be added once more in another form
WITHOUT_END, IN_LOWER_CASE = 0.12, 0.12  # shares of the short pairs that are added

BETWEEN_DIGITS = re.compile(r"(?<=\d) ([:/]) (?=\d)")
END = re.compile(r"[.!?…]+$")
INVERTED = re.compile(r"^[¿¡]+")


def read_pairs(archive: Path) -> list[Pair]:
    """Read the distinct pairs in ``spa-eng.zip``, cleaned, in the order of the archive."""
    with zipfile.ZipFile(archive) as file:
        text = file.read("spa-eng/spa.txt").decode("utf-8")
    pairs: dict[Pair, None] = {}
    for line in text.split("\n"):
        columns = line.split("\t")
        if len(columns) >= 2 and all(map(str.strip, columns[:2])):
            pairs[plain(columns[1]), plain(columns[0])] = None
    return list(pairs)


def read_phrases() -> list[Pair]:
    """Read the phrase book, whose lines are Spanish and English, separated by a tab."""
    lines = PHRASES.read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines if line and not line.startswith("#")]


def patterns(rng: random.Random) -> Iterator[Pair]:
    """Yield pairs of short sentences, each with a name, a town, a clock time or a number."""
    content = json.loads(PATTERNS.read_text(encoding="utf-8"))
    for spanish, english in content["with a name"]:
        for name in content["names"]:
            yield spanish.format(name), english.format(name)
    for spanish, english in content["with a town"]:
        for spanish_town, english_town in content["towns"].items():
            yield spanish.format(spanish_town), english.format(english_town)
    for spanish, english in content["with a time"]:
        for _ in range(80):
            clock = f"{rng.randrange(2, 24)}:{rng.randrange(0, 60, 5):02}"
            yield spanish.format(clock), english.format(clock)
    for spanish, english in content["with a number"]:
        for number in rng.sample(range(2, 100), 40):
            yield spanish.format(number), english.format(number)


def without_end(sentence: str) -> str:
    """Drop the final punctuation of a sentence, and Spanish inverted marks at its start."""
    return INVERTED.sub("", END.sub("", sentence)) or sentence


def chance(pair: Pair) -> float:
    """Return a pseudo-random number from 0 to 1 that depends only on the pair."""
    digest = hashlib.blake2b("\t".join(pair).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def variants(pairs: Sequence[Pair], source: int) -> Iterator[Pair]:
    """Yield some short pairs stripped of final punctuation, about half with lower-case sources.

    ``source`` is the number of the source side: 0 for Spanish, 1 for English.
    """
    for pair in pairs:
        if max(len(side.split()) for side in pair) > SHORT:
            continue
        draw = chance(pair)
        if draw < WITHOUT_END + IN_LOWER_CASE:
            sides = [without_end(side) for side in pair]
            if draw >= WITHOUT_END:
                sides[source] = sides[source].lower()
            yield sides[0], sides[1]


def joined_numbers(tokens: str) -> str:
    """Join clock times, dates and fractions that Moses has split: ``7 : 30`` becomes ``7:30``."""
    return BETWEEN_DIGITS.sub(r"\1", tokens)


def write_words(folder: Path, splits: dict[str, list[Pair]], src: str, tgt: str) -> None:
    """Write all splits as Moses tokens into a new folder, with ``text.json``."""
    pipeline = Pipeline(src, tgt, clean=True, tokenize=True)
    folder.mkdir(parents=True)
    for side, language in enumerate(("es", "en")):
        words = pipeline.words(language)
        for split, pairs in splits.items():
            with (folder / f"{split}.{language}").open("w", encoding="utf-8") as file:
                for pair in pairs:
                    tokens = words(pair[side])
                    file.write((joined_numbers(tokens) if language == tgt else tokens) + "\n")
    pipeline.save(folder)


def write_pieces(out: Path) -> None:
    """Learn BPE merges from the tokens of ``es-en``, and split both directions by them."""
    first, second = (out / "pieces" / name for name in ("es-en", "en-es"))
    split_into_subwords(out / "words/es-en", first, "es", "en", kind="bpe", size=MERGES)
    pipeline = load(first).towards("en", "es")
    second.mkdir()
    for path in sorted((out / "words/en-es").glob("*.e[ns]")):
        encode_file(path, second / path.name, pipeline.pieces.encode)
    pipeline.save(second)


def make(archive: Path, out: Path) -> dict[str, int]:
    """Make all files from ``spa-eng.zip``; return the numbers in ``counts.json``."""
    pairs, phrases = read_pairs(archive), read_phrases()
    groups = group_pairs([*pairs, *phrases])
    sizes = np.unique(groups, return_counts=True)[1]
    in_book = np.isin(groups, groups[len(pairs) :])
    test = draw_groups(groups, TEST, "test", exclude=in_book)
    valid = draw_groups(groups, VALID, "valid", exclude=in_book | test)

    def rows(mask: np.ndarray) -> list[Pair]:
        return [pairs[row] for row in np.flatnonzero(mask[: len(pairs)])]

    held_out = {"valid": rows(valid), "test": rows(test)}
    train = rows(~(test | valid))
    book = [pair for phrase in phrases for pair in [phrase] * PHRASE_COPIES]
    book += [(without_end(es), without_end(en)) for es, en in phrases]
    pattern_pairs = list(patterns(random.Random(1)))
    # Patterns that equal a held-out sentence are removed.
    hidden = {side.casefold() for split in held_out.values() for pair in split for side in pair}
    pattern_pairs = [
        pair for pair in pattern_pairs if not {side.casefold() for side in pair} & hidden
    ]
    counts = {"pairs": len(pairs), "train": len(train), "groups": len(sizes)}
    counts |= {
        "largest_group": int(sizes.max()),
        "phrase_book": len(book),
        "patterns": len(pattern_pairs),
    }
    for source, (src, tgt) in enumerate((("es", "en"), ("en", "es"))):
        variant_pairs = list(variants([*train, *phrases], source))
        counts[f"variants_{src}_{tgt}"] = len(variant_pairs)
        splits = {"train": [*train, *book, *pattern_pairs, *variant_pairs], **held_out}
        write_words(out / "words" / f"{src}-{tgt}", splits, src, tgt)
    write_pieces(out)
    write_pairs(out / "reference", held_out, ("es", "en"))
    write_all(out, {"counts.json": [json.dumps(counts, indent=1)]})
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--archive", type=Path, required=True, help="spa-eng.zip of manythings.org")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    args = parser.parse_args()
    if args.out.exists():
        sys.exit(f"shipped_text: error: `{args.out}` exists; remove it or choose another --out.")
    try:
        print(json.dumps(make(args.archive, args.out)))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        sys.exit(f"shipped_text: error: `{args.archive}` cannot be used: {error}.")


if __name__ == "__main__":
    main()
