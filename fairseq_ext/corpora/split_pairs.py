"""Splitting sentence pairs into train, valid and test so that no sentence leaks between them.

A corpus often gives one sentence several translations; a random split then puts some into train
and others into test. Here a hash of the sentence, not of the pair, decides.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.command_lines import SIDES
from fairseq_ext.errors import ConfigError, DataError
from fairseq_ext.files import sha256
from fairseq_ext.text.cleaning import plain
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.reading import aligned, tab_separated
from fairseq_ext.text.writing import write_all

SentencePair = tuple[str, str]


@dataclass
class Report:
    """How many pairs went where, and why others were left out."""

    read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    key: str | None = None
    leaks: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count ``count`` pairs left out for ``reason``."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count


class _Letters(dict):
    """For ``str.translate``: punctuation, symbols and spaces become a space."""

    def __missing__(self, code: int) -> int:
        # P punctuation, S symbols, Z spaces, C controls; marks (M) stay, Indic vowels are such.
        self[code] = ord(" ") if unicodedata.category(chr(code))[0] in "PSZC" else code
        return self[code]


_LETTERS = _Letters()


def normalized(sentence: str) -> str:
    """What makes two sentences the same: letters and digits, whatever the case or punctuation."""
    return " ".join(sentence.casefold().translate(_LETTERS).split()) or sentence


def cleaned(
    pairs: Iterable[SentencePair],
    clean: tuple[Callable[[str], str], Callable[[str], str]],
    max_words: int | None,
    report: Report,
    unique: bool = True,
) -> list[SentencePair]:
    """Clean both sides; drop pairs with an empty or too long side and, if ``unique``, repeats.

    Args:
        clean: what to do with a source and with a target sentence.
        max_words: most words on either side after cleaning; ``None`` for any number.
        report: counts what was read and dropped.
    """
    kept: dict[SentencePair, None] | list[SentencePair] = {} if unique else []
    for pair in pairs:
        report.read += 1
        source, target = (plain(do(text)) for do, text in zip(clean, pair, strict=True))
        if not source or not target:
            report.drop("empty side")
        elif max_words and max(source.count(" "), target.count(" ")) >= max_words:
            report.drop(f"more than {max_words} words")
        elif isinstance(kept, list):
            kept.append((source, target))
        elif (source, target) in kept:
            report.drop("repeated pair")
        else:
            kept[source, target] = None
    return list(kept)


def repeating_side(pairs: list[SentencePair]) -> int:
    """0 when source sentences repeat more often (fewer distinct ones), 1 when targets do."""
    distinct = [len({normalized(pair[side]) for pair in pairs}) for side in (0, 1)]
    return int(distinct[1] < distinct[0])


def split(
    pairs: list[SentencePair],
    *,
    valid: int,
    test: int,
    key: int,
    salt: str = "1",
    strict: bool = True,
    report: Report | None = None,
) -> dict[str, list[SentencePair]]:
    """Split ``pairs`` so that no (normalized) sentence of the key side is in two splits.

    The distinct key sentences are put in the order of their SHA-256 hashes; the first ``test``
    go into the test set, the next ``valid`` into the validation set, all others into train. Of
    several pairs with one key sentence, valid and test keep one, so their sizes are exact.

    Args:
        key: the side that decides, 0 for source or 1 for target.
        salt: hashed with each sentence; another salt gives another split.
        strict: also drop from train the pairs whose *other* side stands in valid or test.
        report: counts what was dropped and what leaked on the other side.

    Raises:
        DataError: fewer distinct key sentences than ``valid + test + 1``.
    """
    report = report if report is not None else Report()
    keys = [normalized(pair[key]) for pair in pairs]
    others = [normalized(pair[1 - key]) for pair in pairs]
    order = sorted({*keys}, key=lambda text: (_hash(salt, text), text))
    if len(order) <= valid + test:
        raise DataError(
            f"--valid {valid} and --test {test} together need more than {valid + test} distinct "
            f"{SIDES[key]} sentences, but there are {len(order)}; ask for fewer."
        )
    place = dict.fromkeys(order[:test], "test") | dict.fromkeys(order[test : test + valid], "valid")
    best = _one_pair_per_key(pairs, keys, place, salt)
    held_out = {name: {others[i] for i in best if place[keys[i]] == name} for name in SPLITS[1:]}
    splits: dict[str, list[SentencePair]] = {name: [] for name in SPLITS}
    leaks = {"train": 0, "valid and test": len(held_out["valid"] & held_out["test"])}
    for index, pair in enumerate(pairs):
        name = place.get(keys[index], "train")
        if name != "train":
            if index in best:
                splits[name].append(pair)
            else:
                report.drop("further pair of a held-out sentence")
            continue
        leaked = any(others[index] in texts for texts in held_out.values())
        leaks["train"] += leaked
        if leaked and strict:
            report.drop(_leak(SIDES[1 - key]))
        else:
            splits["train"].append(pair)
    report.key, report.leaks = SIDES[key], leaks
    return splits


def _leak(side: str) -> str:
    """What is wrong with a pair of train whose sentence on this side is held out too."""
    return f"{side} sentence also in valid or test"


def _hash(salt: str, text: str) -> bytes:
    return hashlib.sha256(f"{salt}\n{text}".encode()).digest()


def _one_pair_per_key(
    pairs: list[SentencePair], keys: list[str], place: dict[str, str], salt: str
) -> set[int]:
    """For each key in ``place``, the index of one of its pairs: the one of smallest hash."""
    best: dict[str, tuple[bytes, int]] = {}
    for index, (pair, key) in enumerate(zip(pairs, keys, strict=True)):
        if key in place:
            found = (_hash(salt, "\t".join(pair)), index)
            best[key] = min(best.get(key, found), found)
    return {index for _, index in best.values()}


def write(
    folder: Path,
    splits: dict[str, list[SentencePair]],
    langs: tuple[str, str],
    record: dict[str, object],
) -> None:
    """Write ``{split}.{language}`` of each split, and ``record`` with checksums as a manifest."""
    files = {
        f"{name}.{lang}": [pair[side] for pair in pairs]
        for name, pairs in splits.items()
        for side, lang in enumerate(langs)
    }
    write_all(folder, files)
    record = {**record, "sha256": {name: sha256(folder / name) for name in files}}
    name = "manifest.json" if len(splits) > 1 else f"manifest.{next(iter(splits))}.json"
    text = json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True, default=str)
    write_all(folder, {name: [text]})


def summary(report: Report, splits: dict[str, list[SentencePair]], langs: tuple[str, str]) -> str:
    """A table of the splits; what was dropped; what leaked."""
    rows = [f"{'split':6} {'pairs':>8} {'side':>6} {'words':>9} {'types':>7} {'words/line':>11}"]
    for name, pairs in splits.items():
        for side, lang in enumerate(langs):
            words = [word for pair in pairs for word in pair[side].split()]
            mean = len(words) / max(1, len(pairs))
            rows.append(
                f"{name:6} {len(pairs):8} {lang:>6} {len(words):9} {len({*words}):7} {mean:11.1f}"
            )
    rows.append(f"pairs read: {report.read}")
    rows += [f"dropped, {reason}: {count}" for reason, count in report.dropped.items()]
    if report.key:
        other = SIDES[1 - SIDES.index(report.key)]
        kept = report.leaks["train"] - report.dropped.get(_leak(other), 0)
        rows += [
            f"split by the {report.key} sentence; none of them is in two splits",
            f"kept in train, {_leak(other)}: {kept}",
            f"{other} sentences in both valid and test: {report.leaks['valid and test']}",
        ]
    return "\n".join(rows)


def _read(args: argparse.Namespace) -> Iterator[SentencePair]:
    if (args.pairs is None) == (args.source is None) or (args.source is None) != (
        args.target is None
    ):
        raise ConfigError("give either PAIRS or both --source and --target.")
    if args.src_lang == args.tgt_lang:
        raise ConfigError("--src-lang and --tgt-lang are the same; their files would collide.")
    if args.pairs is not None:
        found = tab_separated(args.pairs, args.columns, args.member)
    else:
        found = aligned(args.source, args.target)
    return ((target, source) for source, target in found) if args.swap else found


def run(args: argparse.Namespace) -> str:
    """Read, clean, split and write as the options say; returns the summary.

    Raises:
        DataError: an option or input that cannot be used; nothing has been written then.
    """
    report, langs = Report(), (args.src_lang, args.tgt_lang)
    pipeline = Pipeline(*langs, clean=True, tokenize=args.tokenize, lowercase=args.lowercase)
    clean = tuple(pipeline.words(lang) for lang in langs)
    found = tqdm(_read(args), desc="pairs", unit="", file=sys.stderr, disable=None)
    pairs = cleaned(found, clean, args.max_words, report, unique=args.as_split is None)
    if not pairs:
        raise DataError(f"no pairs are left of {report.read} read; nothing to write.")
    if args.as_split:
        splits = {args.as_split: pairs}
    else:
        key = repeating_side(pairs) if args.key == "auto" else SIDES.index(args.key)
        sizes = {"valid": args.valid, "test": args.test}
        splits = split(pairs, **sizes, key=key, salt=args.salt, strict=args.strict, report=report)
    report.splits = {name: len(kept) for name, kept in splits.items()}
    inputs = [path for path in (args.pairs, args.source, args.target) if path]
    record = {
        "options": {name: value for name, value in vars(args).items() if name != "out"},
        "inputs": {path.name: sha256(path) for path in inputs},
        "report": vars(report),
    }
    write(args.out, splits, langs, record)
    pipeline.save(args.out)
    return summary(report, splits, langs)
