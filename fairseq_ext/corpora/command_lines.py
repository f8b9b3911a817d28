"""Command lines that make corpora, for the scripts and for ``fairseq-ext``.

Each has a function that adds its options to a parser, and a module whose ``run`` takes the parsed
options and returns what to print. The work is imported when it runs.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.catalogue import CORPORA
from fairseq_ext.text.subwords import LEARNT
from fairseq_ext.utils import extras, files
from fairseq_ext.utils.errors import EnvironmentProblem

SIDES = ("source", "target")
SUBWORDS = (*LEARNT, "none")
CSV_NAMES = {
    "train": "wmt14_translate_de-en_train.csv",
    "valid": "wmt14_translate_de-en_validation.csv",
    "test": "wmt14_translate_de-en_test.csv",
}
GPT2_URL = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe"  # the default of `--bpe gpt2`


@dataclass(frozen=True)
class CommandLine:
    """The options of a command, and the module that runs it."""

    add: Callable[[argparse.ArgumentParser], None]
    module: str

    def run(self, args: argparse.Namespace) -> str:
        """Run the command; returns the text to print.

        Args:
            args: which may have other options, of the command around it.

        Raises:
            FairseqExtError: an option, input or folder that cannot be used.
        """
        parser = argparse.ArgumentParser(add_help=False)
        self.add(parser)
        options = {action.dest: getattr(args, action.dest) for action in parser._actions}
        try:
            return importlib.import_module(self.module).run(argparse.Namespace(**options))
        except ModuleNotFoundError as error:
            raise EnvironmentProblem(extras.missing(error.name or str(error))) from error
        except OSError as error:
            raise EnvironmentProblem(files.explain(error)) from error


def run_script(name: str, description: str) -> None:
    """Run a script; a user's error ends it with one line and status 1.

    Args:
        name: in :data:`COMMAND_LINES`.
        description: the script's docstring, of which ``--help`` shows the first paragraph.
    """
    parser = argparse.ArgumentParser(description=description.split("\n\n")[0])
    command_line = COMMAND_LINES[name]
    command_line.add(parser)
    args = parser.parse_args()
    try:
        print(command_line.run(args))
    except (ValueError, RuntimeError) as error:
        raise SystemExit(f"{name}: error: {error}") from None
    except KeyboardInterrupt:
        goes_on = "; the same command goes on from here" if name == "corpus" else ""
        raise SystemExit(f"{name}: stopped{goes_on}.") from None


# ---- the corpora of the literature ---------------------------------------------------------------


def add_corpus(parser: argparse.ArgumentParser) -> None:
    """Add options to prepare a corpus of the catalogue."""
    parser.add_argument("corpus", choices=sorted(CORPORA), help="which")
    add_official(parser)


def add_official(parser: argparse.ArgumentParser) -> None:
    """Add options that all corpora of the catalogue share."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to write into")
    add("--download", type=Path, metavar="DIR", help="keep the archives in DIR (OUT/download)")
    add(
        "--mirror",
        metavar="DIR_OR_URL",
        help="read the archives, under their own names, from a folder or below another address",
    )
    add(
        "--workers",
        type=_natural,
        metavar="N",
        help="processes (default: one for each core)",
    )
    add("--bpe", type=_natural, metavar="N", help="merges; 0 for words (default: the paper's)")
    add(
        "--subwords",
        choices=SUBWORDS,
        default="bpe",
        help="subwords of another kind, --bpe N pieces of them (default: %(default)s)",
    )
    add(
        "--any-counts",
        action="store_true",
        help="accept other numbers of pairs than the known ones, as of another edition",
    )


# ---- other origins -------------------------------------------------------------------------------


def add_tatoeba(parser: argparse.ArgumentParser) -> None:
    """Add options of the corpus that comes with this package."""
    add = parser.add_argument
    add("--src", default="es", help="source language, es or en (default: %(default)s)")
    add("--tgt", default="en", help="target language, the other one (default: %(default)s)")
    for split, limit in (("--valid", 1000), ("--test", 1500)):
        add(split, type=_natural, default=limit, metavar="N", help=f"at most {limit}, the default")
    add(
        "--sample",
        type=_sizes,
        metavar="TRAIN,VALID,TEST",
        help="instead of the whole corpus: so many pairs of each split, for a trial",
    )
    add("--out", type=Path, required=True, help="folder to write into")


def add_pairs(parser: argparse.ArgumentParser) -> None:
    """Add options to split sentence pairs."""
    add = parser.add_argument
    add(
        "pairs",
        nargs="?",
        type=Path,
        help="tab-separated pairs, or CSV: a plain, .gz, .bz2, .xz or .zip file",
    )
    add("--member", help="the file inside the .zip, when it holds several")
    add(
        "--columns",
        type=_columns,
        default=(1, 2),
        metavar="SRC,TGT",
        help="columns of source and target, counted from 1 (default: 1,2), or with --header their "
        "names; others are ignored",
    )
    add("--header", action="store_true", help="the first line of PAIRS names its columns")
    add(
        "--csv",
        action="store_true",
        help="PAIRS is CSV: cells apart by commas, semicolons or tabs, some in quotation marks "
        "(default: where its name ends in .csv)",
    )
    add("--source", type=Path, help="instead of PAIRS: source lines (plain, .gz, .bz2 or .xz) …")
    add("--target", type=Path, help="… and the target lines aligned with them")
    add(
        "--corpora",
        type=Path,
        metavar="LIST",
        help="instead of both: a JSON list of corpora with their weights and licences",
    )
    add(
        "--download",
        type=Path,
        metavar="DIR",
        help="keep data sets of mtdata, which LIST may name, in DIR (OUT/download)",
    )
    add("--swap", action="store_true", help="exchange source and target as read")
    add("--src-lang", required=True, help="source language: file suffix and tokenizer rules")
    add("--tgt-lang", required=True, help="target language")
    add("--tokenize", action="store_true", help="Moses tokenization (sacremoses), no escapes")
    add("--lowercase", action="store_true", help="lower-case both sides")
    add("--max-words", type=_natural, metavar="N", help="drop pairs with a longer side")
    add(
        "--rule",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="leave out more pairs, may be given again: length=MIN:MAX, ratio=R, letters=SHARE, "
        "different, language, or a rule of another package",
    )
    add("--valid", type=_natural, default=1000, metavar="N", help="default: %(default)s")
    add("--test", type=_natural, default=1000, metavar="N", help="default: %(default)s")
    add(
        "--key",
        choices=(*SIDES, "auto", "groups"),
        default="auto",
        help="side whose sentences must not be in two splits (default: the one that repeats more); "
        "groups: no sentence of either side in one split is a word or two away from another's",
    )
    add(
        "--strict",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="drop from train the pairs whose other side is in valid or test (default: yes)",
    )
    add("--salt", default="1", help="another salt gives another split (default: 1)")
    add(
        "--as",
        dest="as_split",
        choices=SPLITS,
        help="do not split: write all pairs, in order and repeats too, as this split",
    )
    add("--out", type=Path, required=True, help="folder to write into")
    add(
        "--overwrite",
        action="store_true",
        help="write over a corpus in OUT that was made otherwise",
    )
    add("--workers", type=_natural, metavar="N", help="processes (default: one for each core)")
    add_parts(parser)


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Add options to share the work, in parts, between processes and machines."""
    add = parser.add_argument
    add(
        "--parts",
        type=Path,
        metavar="FOLDER",
        help="keep what is done in this folder: several workers, also of other machines, may share "
        "it, and stopped and started again they go on with the parts that are missing",
    )
    add("--part-lines", type=_positive, metavar="N", help="pairs in a part (default: 200000)")
    add(
        "--shard",
        metavar="I/N",
        help="clean only part I of every N, from 0/N; without it a worker takes any part",
    )
    add(
        "--ray",
        metavar="ADDRESS",
        help="of a Ray cluster that shares the folder: a worker for each OMP_NUM_THREADS "
        "processors (1); `local` starts one on this machine",
    )


def add_csv(parser: argparse.ArgumentParser) -> None:
    """Add options to convert the CSV files of WMT14 English–German."""
    add = parser.add_argument
    train = CSV_NAMES["train"]
    add("--data", type=Path, required=True, help=f"folder or .zip with {train} and so on")
    add("--src", default="en", help="source column and file ending (default: %(default)s)")
    add("--tgt", default="de", help="target column and file ending (default: %(default)s)")
    add("--vocabulary", type=Path, help="GPT-2's encoder.json, or BART's vocab.json")
    add("--merges", type=Path, help="GPT-2's vocab.bpe, or BART's merges.txt")
    add(
        "--download",
        type=Path,
        metavar="DIR",
        help="instead of these two: keep GPT-2's in DIR, downloaded once from --url",
    )
    add("--url", default=GPT2_URL, help="address of encoder.json and vocab.bpe (%(default)s)")
    add(
        "--fraction",
        type=_fraction,
        default=Fraction(1, 2),
        metavar="F",
        help="use the first F of the training rows (default: 1/2)",
    )
    add(
        "--valid-fraction",
        type=_fraction,
        default=Fraction(1, 100),
        metavar="F",
        help="of the rows used, the last F validate (default: 1/100)",
    )
    add("--csv-valid", action="store_true", help="validate on the CSV validation file instead")
    add(
        "--max-ids",
        type=_positive,
        default=1000,
        metavar="N",
        help="cut lines to this many ids (default: %(default)s)",
    )
    add(
        "--pad-to-multiple",
        type=_positive,
        default=8,
        metavar="N",
        help="fill the dictionary up to a multiple of N (default: %(default)s)",
    )
    add("--out", type=Path, required=True, help="folder to write into")


def add_own(parser: argparse.ArgumentParser) -> None:
    """Add options to check and copy a user's own text."""
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with the six text files")
    add("--src", required=True, help="source language, the ending of its files")
    add("--tgt", required=True, help="target language, the ending of its files")
    add("--out", type=Path, required=True, help="folder to write")
    add("--tokenize", action="store_true", help="Moses tokenization (sacremoses)")


def _add_prepared(parser: argparse.ArgumentParser) -> None:
    """Add options that name a prepared corpus and its languages."""
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with its tokens and its text.json")
    add("--src", required=True, help="source language, the ending of its files")
    add("--tgt", required=True, help="target language, the ending of its files")


def add_monolingual(parser: argparse.ArgumentParser) -> None:
    """Add options to write text without a translation."""
    _add_prepared(parser)
    add = parser.add_argument
    add("--language", required=True, help="the side")
    add("--text", type=Path, metavar="FILE", help="plain text to write instead, once it is checked")
    add("--skip", type=_natural, default=0, metavar="N", help="leave the first N lines out")
    add("--out", type=Path, required=True, help="file to write")


def add_mix(parser: argparse.ArgumentParser) -> None:
    """Add options to add synthetic pairs to a corpus."""
    _add_prepared(parser)
    add = parser.add_argument
    add("--source", type=Path, required=True, help="source lines of the synthetic pairs, text …")
    add("--target", type=Path, required=True, help="… and their target lines")
    add("--tag", default="", help="put before each synthetic source, such as <BT> (default: none)")
    add(
        "--copies",
        type=_natural,
        default=1,
        metavar="N",
        help="of the corpus's own training pairs; 0: synthetic ones alone (default: 1)",
    )
    add("--longest", type=_positive, default=250, metavar="N", help="tokens (default: 250)")
    add("--ratio", type=float, default=3.0, metavar="R", help="of the two lengths (default: 3)")
    add("--workers", type=_positive, default=1, metavar="N", help="processes (default: 1)")
    add("--out", type=Path, required=True, help="folder to write")


COMMAND_LINES = {
    "corpus": CommandLine(add_corpus, "fairseq_ext.corpora.preparation"),
    "tatoeba": CommandLine(add_tatoeba, "fairseq_ext.corpora.tatoeba"),
    "split_pairs": CommandLine(add_pairs, "fairseq_ext.corpora.split_pairs"),
    "wmt14_csv": CommandLine(add_csv, "fairseq_ext.corpora.wmt14_csv"),
    "prepare": CommandLine(add_own, "fairseq_ext.corpora.own_text"),
    "monolingual": CommandLine(add_monolingual, "fairseq_ext.corpora.monolingual"),
    "mix": CommandLine(add_mix, "fairseq_ext.corpora.synthetic"),
}
"""By the name of the script."""


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


def _positive(text: str) -> int:
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


def _fraction(text: str) -> Fraction:
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"`{text}` must be above 0 and at most 1, such as 0.5 or 1/2"
        )
    return value
