"""Count the translations of a manual that keep its tags, and measure how tags change quality.

    python benchmarks/markup.py --help-pages help/en-US help/de --languages en de --model en-de \\
        --held-out held_out.en --json docs/results/markup.json

The manual is LibreOffice's help, from the packages libreoffice-help-*. `fairseq-ext translate
--markup` translates its first --lines sentences that have tags. The script prints two counts:

- translations that have the tags of their source in the same order;
- translations that are well-formed XML, among those whose source is well-formed.

--held-out is a file of sentences, without tags, on which the model was not trained. Sentences of
the manual that are in this file are translated twice: with tags and without. Both translations are
scored without tags.
"""

import argparse
import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import bench

from fairseq_ext.evaluation.score import score_lines

COMMAND = (sys.executable, "-m", "fairseq_ext")
TAG = re.compile(r"</?[A-Za-z][^<>]*>")


def arguments() -> argparse.Namespace:
    parser = bench.parser_with(__doc__)
    add = parser.add_argument
    pages = "folders of the manual's pages in the two languages"
    add("--help-pages", type=Path, nargs=2, required=True, metavar="FOLDER", help=pages)
    codes = "codes of the source and target language"
    add("--languages", nargs=2, required=True, metavar="CODE", help=codes)
    add("--model", required=True, help="path or name of the bundle that translates")
    add("--held-out", type=Path, required=True, help="file of source sentences without tags")
    add("--lines", type=int, default=10_000, help="most sentences with tags to translate")
    return parser.parse_args()


def read_pairs(options: argparse.Namespace, folder: Path) -> list[tuple[str, str]]:
    """Return the sentence pairs of the help pages; leave out pairs without tags in the source."""
    source, target = options.help_pages
    src, tgt = options.languages
    words = ["--source", source, "--target", target, "--src", src, "--tgt", tgt]
    words = [*COMMAND, "corpus", "translations", *words, "--markup", "keep", "-o", folder / "pairs"]
    subprocess.run(words, check=True)
    lines = (folder / "pairs").read_text(encoding="utf-8").splitlines()
    pairs = [tuple(line.split("\t")[:2]) for line in lines]
    return [(source, target) for source, target in pairs if TAG.search(source)]


def translate(options: argparse.Namespace, lines: list[str], *flags: str) -> list[str]:
    words = [*COMMAND, "translate", "--model", options.model, *flags]
    done = subprocess.run(
        words, input="\n".join(lines) + "\n", stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def plain(line: str) -> str:
    return " ".join(html.unescape(TAG.sub("", line)).split())


def is_well_formed(line: str) -> bool:
    try:
        ElementTree.fromstring(f"<line>{line}</line>")
    except ElementTree.ParseError:
        return False
    return True


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        pairs = read_pairs(options, Path(folder))
    sources = [source for source, _ in pairs[: options.lines]]
    translations = translate(options, sources, "--markup", "--beam", "1", "--skip-long")
    both = list(zip(sources, translations, strict=True))
    well_formed = [
        is_well_formed(translation) for source, translation in both if is_well_formed(source)
    ]
    held_out = {" ".join(line.split()) for line in options.held_out.read_text("utf-8").splitlines()}
    test = [pair for pair in pairs if plain(pair[0]) in held_out]
    references = [plain(target) for _, target in test]
    tagged = translate(options, [source for source, _ in test], "--markup")
    outputs = {
        "without tags": translate(options, [plain(source) for source, _ in test]),
        "with tags": [plain(translation) for translation in tagged],
    }
    figures = {
        "sentences": len(both),
        "with the tags of the source": sum(
            TAG.findall(source) == TAG.findall(translation) for source, translation in both
        ),
        "well-formed sources": len(well_formed),
        "well-formed translations of these": sum(well_formed),
        "held-out sentences": len(test),
        "scores": {
            name: {score.name: round(score.value, 2) for score in score_lines(lines, references)}
            for name, lines in outputs.items()
        },
    }
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    if options.json is not None:
        bench.save(options.json, title="Translations with tags", **figures)


if __name__ == "__main__":
    main()
