"""``fairseq-ext shortlist``: learn from training data which target tokens a sentence may need."""

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import require_file
from fairseq_ext.utils.option_fields import flag, require_at_least

COUNTS = {
    "per_token": (50, "target tokens to list for each source token"),
    "frequent": (
        100,
        "most frequent target tokens, allowed in every sentence; at least twice the beam plus 2",
    ),
    "iterations": (5, "iterations of EM over the training data"),
}


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "shortlist",
        help="list the target tokens that a sentence may need, for a faster search",
        description="Learn from binarized training data which target tokens translate a source "
        "token (IBM model 1), and list the most probable target tokens for each source token, and "
        "the most frequent ones for all. `translate`, fairseq-generate and fairseq-interactive "
        "take this shortlist with --shortlist; `bundle --shortlist` puts it into the model.",
        example="fairseq-ext shortlist data-bin -o shortlist.txt",
    )
    parser.add_argument(
        "data", type=Path, metavar="DATA", help="folder of fairseq-preprocess with training data"
    )
    parser.add_argument("--src", metavar="LANG", help="source language, if the folder has several")
    parser.add_argument("--tgt", metavar="LANG", help="target language, if the folder has several")
    for name, (default, text) in COUNTS.items():
        settings = {"type": int, "default": default, "metavar": "N"}
        parser.add_argument(flag(name), help=f"{text} (%(default)s)", **settings)
    options.add_output(parser, "FILE", "shortlist to write")
    parser.set_defaults(run=_shortlist)


def _shortlist(args: argparse.Namespace) -> None:
    require_at_least(args, **dict.fromkeys(COUNTS, 1))
    from fairseq.data import Dictionary

    from fairseq_ext.data_folder import indexed
    from fairseq_ext.engine import lexicon, shortlist

    prefix, languages = _prefix(args.data, args.src, args.tgt)
    symbols, sides = [], []
    for language in languages:
        path = require_file(args.data / f"dict.{language}.txt", "dictionary")
        symbols.append(Dictionary.load(str(path)).symbols)
        side = indexed.read(f"{prefix}.{language}", len(symbols[-1]))
        sides.append(lexicon.Side(*side, len(symbols[-1])))
    if len(sides[0].begins) != len(sides[1].begins):
        raise DataError(
            f"{prefix}: source and target must have the same number of sentences, but have "
            f"{len(sides[0].begins) - 1:,} and {len(sides[1].begins) - 1:,}."
        )
    source, target = sides
    table = lexicon.ibm1(source, target, args.iterations)
    lists = lexicon.likely(table, source, target, args.per_token)
    common = lexicon.frequent(target, args.frequent)
    named = {
        symbol: [symbols[1][word] for word in words]
        for symbol, words in zip(symbols[0], lists, strict=True)
        if len(words)
    }
    shortlist.write(args.output, [symbols[1][word] for word in common], named)
    print(
        f"{len(named):,} source tokens, {len(common):,} frequent target tokens, "
        f"{len(source.begins) - 1:,} sentences"
    )
    candidates = shortlist.Shortlist(common, lists)
    covered, listed = shortlist.coverage(candidates, source, target)
    print(
        f"of {len(symbols[1]):,} target tokens, the shortlist allows a sentence {listed:,.0f} on "
        f"average; these include {covered:.2%} of the tokens of its translation (measured on "
        "sentences spread over the training data)"
    )


def _prefix(data: Path, src: str | None, tgt: str | None) -> tuple[Path, tuple[str, str]]:
    """Find the binarized training data of a language pair; a language of None means any.

    Return the prefix of the data's files, such as ``data-bin/train.de-en``, and both languages. As
    in fairseq, data of the opposite direction are accepted if both languages are given. Raise
    DataError if no pair, or more than one, has training data.
    """
    pairs = {}
    for path in data.glob("train.*-*.*.idx"):
        pair, source = path.name.split(".")[1:3]
        target = pair.removeprefix(f"{source}-")  # either may have a hyphen: pt-BR
        is_pair = (data / f"train.{pair}.{target}.idx").is_file()
        if is_pair and (src or source, tgt or target) == (source, target):
            pairs[data / f"train.{pair}"] = (source, target)
    turned = data / f"train.{tgt}-{src}"
    if not pairs and all(Path(f"{turned}.{language}.idx").is_file() for language in (src, tgt)):
        return turned, (str(src), str(tgt))
    if not pairs:
        raise DataError(
            f"{data} has no binarized training data of a matching pair of languages; give the "
            "folder that fairseq-preprocess wrote, and its languages as `--src` and `--tgt`."
        )
    if len(pairs) > 1:
        raise DataError(
            f"{data} has training data of several pairs of languages; choose one by `--src` and "
            "`--tgt`."
        )
    return pairs.popitem()
