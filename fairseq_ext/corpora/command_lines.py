"""Commands that make corpora: their options, and the modules that do the work.

A module is imported only when its command runs.
"""

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.markup import MARKUP_RULES, MNEMONIC_RULES, PLACEHOLDER_RULES
from fairseq_ext.corpora.readers import FORMAT_NAMES
from fairseq_ext.text.subwords import LEARNT
from fairseq_ext.utils.option_fields import from_args, option

OUTPUT = ("-o", "--output", "--out")
"""Names of the option for the output; commands of other modules have only the first two."""
SIDES = ("source", "target")
SUBWORDS = (*LEARNT, "none")
NOISE_KINDS = ("typos", "lower", "upper", "punctuation")


# ---- values --------------------------------------------------------------------------------------


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` must be a whole number, not negative")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    numbers = text.split(",")
    if len(numbers) != len(SPLITS) or not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(
            f"`{text}` must be three numbers of pairs, for train, valid and test, such as 400,20,20"
        )
    return tuple(map(int, numbers))


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` must be a positive whole number")
    return int(text)


def _columns(text: str) -> tuple[int, int] | tuple[str, str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) == 2 and all(names):
        if all(name.isdecimal() and int(name) > 0 for name in names):
            return int(names[0]), int(names[1])
        if not any(name.lstrip("-").isdecimal() for name in names):
            return names[0], names[1]
    raise argparse.ArgumentTypeError(
        f"`{text}` must be two column numbers, source then target, such as 2,1, or two names"
    )


# ---- the corpora of the literature ---------------------------------------------------------------


@dataclass(frozen=True)
class OfficialOptions:
    """Options to prepare a corpus of the catalogue, such as multi30k."""

    corpus: str
    out: Path = option(MISSING, "folder to write into", *OUTPUT, metavar="DIR")
    download: Path | None = option(
        None, "folder to keep the archives in (default: `download` below --output)", metavar="DIR"
    )
    mirror: str | None = option(
        None,
        "folder or address with copies of the archives, under their original names",
        metavar="DIR_OR_URL",
    )
    workers: int | None = option(None, "processes (default: one for each core)", type=_natural)
    bpe: int | None = option(
        None, "number of merges; 0 for words (default: the paper's)", type=_natural
    )
    subwords: str = option(
        "bpe", "kind of subwords; --bpe sets their number (default: %(default)s)", choices=SUBWORDS
    )
    any_counts: bool = option(
        False,
        "accept archives with unexpected numbers of pairs, such as archives of another edition",
    )


# ---- other origins -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TatoebaOptions:
    """Options to write the corpus that comes with this package."""

    out: Path = option(MISSING, "folder to write into", *OUTPUT, metavar="DIR")
    valid: int | None = option(None, "validation pairs, at most 1000 (1000)", type=_natural)
    test: int | None = option(None, "test pairs, at most 1500 (1500)", type=_natural)
    sample: tuple[int, ...] | None = option(
        None,
        "number of pairs in each split, to try a part of the corpus",
        type=_sizes,
        metavar="TRAIN,VALID,TEST",
    )


@dataclass(frozen=True)
class PairOptions:
    """Options to clean sentence pairs and split them into train, valid and test."""

    src_lang: str = option(
        MISSING,
        "source language: file suffix and tokenizer rules",
        "--src",
        "--src-lang",
        metavar="LANG",
    )
    tgt_lang: str = option(MISSING, "target language", "--tgt", "--tgt-lang", metavar="LANG")
    out: Path = option(MISSING, "folder to write into", *OUTPUT, metavar="DIR")
    pairs: Path | None = option(
        None,
        "tab-separated pairs, or CSV: a plain, .gz, .bz2, .xz or .zip file",
        "pairs",
        nargs="?",
    )
    member: str | None = option(None, "file inside the .zip, if there are several")
    columns: tuple[int, int] | tuple[str, str] = option(
        (1, 2),
        "columns of source and target, by number from 1 (default: 1,2) or, with --header, by name",
        type=_columns,
        metavar="SRC,TGT",
    )
    header: bool = option(False, "read column names from the first line of PAIRS")
    csv: bool = option(
        False,
        "read PAIRS as CSV: cells separated by commas, semicolons, tabs or bars, some in quotation "
        "marks (default for names that end in .csv)",
    )
    source: Path | None = option(
        None, "file of source lines (plain, .gz, .bz2 or .xz), with --target instead of PAIRS"
    )
    target: Path | None = option(None, "file of target lines, aligned with --source")
    corpora: Path | None = option(
        None,
        "JSON list of corpora, with weights and licences, instead of PAIRS or --source and "
        "--target",
        metavar="LIST",
    )
    tokenize: bool = option(False, "tokenize as Moses does (sacremoses), without escapes")
    lowercase: bool = option(False, "lower-case both sides")
    max_words: int | None = option(
        None, "drop pairs with more than N words on a side (default: keep all)", type=positive
    )
    rule: Sequence[str] = option(
        [],
        "rule that leaves out more pairs: length=MIN:MAX words, ratio=R of both lengths, "
        "letters=SHARE of characters, token=N characters at most, different or language; may be "
        "repeated",
        action="append",
        metavar="NAME=VALUES",
    )
    valid: int = option(1000, "validation pairs (%(default)s)", type=_natural)
    test: int = option(1000, "test pairs (%(default)s)", type=_natural)
    key: str = option(
        "auto",
        "side whose sentences must not be in two splits (default: the side with more repeated "
        "sentences); groups: sentences of either side that differ by a word or two share a split",
        choices=(*SIDES, "auto", "groups"),
    )
    strict: bool = option(
        True, "drop training pairs whose other side (not --key) is in valid or test (default: yes)"
    )
    salt: str = option("1", "text that decides the random split, like a seed (default: 1)")
    as_split: str | None = option(
        None,
        "do not split: write all pairs, in order and with repeats, as this split",
        "--as",
        choices=SPLITS,
    )
    overwrite: bool = option(False, "overwrite a corpus in --output that was made differently")
    workers: int | None = option(None, "processes (default: one for each core)", type=_natural)
    parts: Path | None = option(
        None,
        "folder for finished parts; workers on one or several machines may share it, and a "
        "restarted worker continues with the missing parts",
        metavar="FOLDER",
    )
    part_lines: int = option(200_000, "pairs in a part (default: %(default)s)", type=positive)


@dataclass(frozen=True)
class TranslationOptions:
    """Options to read sentence pairs from files such as TMX, and to handle mark-up in them."""

    src: str = option(help="source language, such as en")
    tgt: str = option(help="target language, such as de")
    output: Path = option(
        MISSING,
        "file to write, with source, target and document of each pair, for `corpus pairs`; "
        "TSV.json gets counts and checksums",
        "-o",
        "--output",
        metavar="TSV",
    )
    files: Sequence[Path] = option(
        [],
        "files with both languages, or folders of them: gettext's .po and .mo, .tmx, .xlf, "
        "WMT's .xml",
        "files",
        nargs="*",
        metavar="FILE",
    )
    source: Path | None = option(
        None,
        "file or folder of source texts (.sgm, lines, help pages), with --target instead of FILE",
    )
    target: Path | None = option(None, "file or folder of translations of --source")
    format: str | None = option(
        None, "format of the files (default: by the endings of their names)", choices=FORMAT_NAMES
    )
    markup: str = option(
        MARKUP_RULES[0], "rule for tags such as <emph> (default: %(default)s)", choices=MARKUP_RULES
    )
    placeholders: str = option(
        PLACEHOLDER_RULES[0],
        "rule for values such as %%s and {name} (default: %(default)s)",
        choices=PLACEHOLDER_RULES,
    )
    mnemonics: str = option(
        MNEMONIC_RULES[0],
        "rule for marks of shortcut keys, as in &File (default: %(default)s)",
        choices=MNEMONIC_RULES,
    )
    licence: str = option("", "licence of the texts, to note in TSV.json", metavar="TEXT")
    domain: str = option("", "domain of the texts, to note in TSV.json", metavar="NAME")


@dataclass(frozen=True)
class ContaminationOptions:
    """Options to look for the sentences of a test set in training text."""

    test: Path = option(MISSING, "test set as plain text, one sentence per line", "test")
    training: Sequence[Path] = option(
        help="training text in the same language, plain or compressed", nargs="+"
    )
    output: Path | None = option(
        None,
        "file for the matching sentences, one line of JSON for each: its number (from 0), exact or "
        "near, the number of the training sentence (from 0), and the text",
        "-o",
        "--output",
        metavar="JSONL",
    )


@dataclass(frozen=True)
class NoiseOptions:
    test: Path = option(MISSING, "plain text, one source sentence per line", "test")
    kind: str = option(
        help="typos: swapped, missing, doubled or wrong letters; lower or upper: all letters in "
        "this case; punctuation: remove it",
        choices=NOISE_KINDS,
    )
    out: Path = option(MISSING, "file to write", *OUTPUT)
    share: float | None = option(
        None, "share of words that get a typing error (default: 0.1)", metavar="SHARE"
    )
    seed: int | None = option(None, "seed of the typing errors (default: 1)")


@dataclass(frozen=True)
class OwnTextOptions:
    """Options to check and copy a user's own text."""

    data: Path = option(help="folder with the six text files", metavar="DIR")
    src: str = option(help="source language, the ending of its files")
    tgt: str = option(help="target language, the ending of its files")
    out: Path = option(MISSING, "folder to write", *OUTPUT, metavar="DIR")
    tokenize: bool = option(False, "tokenize as Moses does (sacremoses)")


@dataclass(frozen=True)
class MonolingualOptions:
    """Options to write one side of a corpus, or another text, as plain text."""

    out: Path = option(MISSING, "file to write", *OUTPUT)
    data: Path | None = option(
        None, "folder of the prepared corpus: tokens and text.json", metavar="DIR"
    )
    src: str | None = option(None, "source language, the ending of its files")
    tgt: str | None = option(None, "target language, the ending of its files")
    language: str | None = option(None, "language of the side to write")
    text: Path | None = option(None, "plain text to check and write, instead of the four above")
    skip: int = option(0, "leave the first N lines out", type=_natural)


@dataclass(frozen=True)
class MixOptions:
    """Options to add synthetic pairs to a corpus."""

    data: Path = option(help="folder of the prepared corpus: tokens and text.json", metavar="DIR")
    src: str = option(help="source language, the ending of its files")
    tgt: str = option(help="target language, the ending of its files")
    source: Path = option(help="text file with the source lines of the synthetic pairs")
    target: Path = option(help="text file with the target lines of the synthetic pairs")
    out: Path = option(MISSING, "folder to write", *OUTPUT, metavar="DIR")
    tag: str = option("", "word to put before each synthetic source, such as <BT> (default: none)")
    copies: int = option(
        1,
        "copies of the corpus's own training pairs; 0: only synthetic pairs (default: 1)",
        type=_natural,
    )
    longest: int = option(
        250, "leave out synthetic pairs with more than N tokens on a side (250)", type=positive
    )
    ratio: float = option(
        3.0,
        "leave out synthetic pairs with one side more than R times as long as the other (3)",
        metavar="R",
    )
    workers: int = option(1, "processes (default: 1)", type=positive)


# ---- the commands --------------------------------------------------------------------------------


class CommandLine(NamedTuple):
    """A command that makes a corpus: its options, function, line in ``--help`` and example.

    ``place`` names the function, as ``MODULE.FUNCTION`` in this folder. The function takes the
    options, and returns the text to print.
    """

    options: type
    place: str
    summary: str
    example: str

    def run(self, args: argparse.Namespace) -> int:
        """Run the command with its options from ``args``; return the exit status."""
        module, _, function = self.place.partition(".")
        work = getattr(importlib.import_module(f"fairseq_ext.corpora.{module}"), function)
        print(work(from_args(self.options, args)))
        return 0


OFFICIAL = CommandLine(
    OfficialOptions,
    "official.run",
    "corpora of papers, made from official archives as the papers say",
    "fairseq-ext corpus multi30k -o multi30k",
)
PREPARE = CommandLine(
    OwnTextOptions,
    "own_text.run",
    "check your own text and copy it, with --tokenize as tokens",
    "fairseq-ext prepare --data text --src de --tgt en --tokenize -o prepared",
)
OTHERS = {
    "tatoeba": CommandLine(
        TatoebaOptions,
        "tatoeba.run",
        "Spanish-English sentences that come with this package",
        "fairseq-ext corpus tatoeba -o text",
    ),
    "pairs": CommandLine(
        PairOptions,
        "split_pairs.run",
        "sentence pairs, split into train, valid and test without leaks",
        "fairseq-ext corpus pairs --source my.de --target my.en --src de --tgt en -o text",
    ),
    "translations": CommandLine(
        TranslationOptions,
        "translation_files.run",
        "sentence pairs from gettext, TMX, XLIFF, help pages and test sets of WMT",
        "fairseq-ext corpus translations po/ --src en --tgt de -o pairs.tsv",
    ),
    "contamination": CommandLine(
        ContaminationOptions,
        "contamination.run",
        "test sentences that occur, exactly or nearly, in the training text",
        "fairseq-ext corpus contamination test.en --training train.en",
    ),
    "noise": CommandLine(
        NoiseOptions,
        "noise.run",
        "a test set with typing errors, another case or no punctuation",
        "fairseq-ext corpus noise test.de --kind typos --seed 1 -o test.typos.de",
    ),
    "monolingual": CommandLine(
        MonolingualOptions,
        "synthetic.write_side",
        "one side of a prepared corpus as plain text",
        "fairseq-ext corpus monolingual --data text --src de --tgt en --language en -o plain.en",
    ),
    "mix": CommandLine(
        MixOptions,
        "synthetic.run",
        "a prepared corpus plus synthetic pairs, of which a model wrote one side",
        "fairseq-ext corpus mix --data text --src de --tgt en --source back.de "
        "--target plain.en -o mixed --tag '<BT>'",
    ),
}
"""The commands of corpora that are not in the catalogue, by name."""
