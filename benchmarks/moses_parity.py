"""Count the lines on which our Python version of Moses' scripts differs from the scripts.

    python benchmarks/moses_parity.py --moses mosesdecoder/scripts FILE.en FILE.de … --json OUT

The script needs Perl and a clone of github.com/moses-smt/mosesdecoder. A file's name must end in
its language, with or without ``.gz`` after it.

``--official TEXT=TOKENS`` compares with tokens that a corpus's authors published, such as those of
Multi30k. The file TEXT is put in lower case, its punctuation is normalized, and it is tokenized.
The lines that differ from the file TOKENS are counted.
"""

import argparse
import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fairseq_ext.text import moses, reading
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils import files


def lines_of(path: Path) -> list[str]:
    """Read the lines of a text, which may be compressed."""
    return [line for _, line in reading.lines(path)]


def language_of(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.removeprefix(".")


def by_script(script: Path, options: list[str], lines: list[str]) -> list[str]:
    """Run a Perl script on the lines; return the lines that it prints."""
    done = subprocess.run(
        ["perl", script, *options],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        check=True,
    )
    return done.stdout.decode("utf-8").removesuffix("\n").split("\n")


def compare(ours: list[str], theirs: list[str]) -> dict[str, object]:
    """Return the numbers of lines and of differing lines, and the first three differences."""
    wrong = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    return {"lines": len(ours), "different": len(wrong), "examples": wrong[:3]}


def steps(scripts: Path, language: str) -> dict[str, tuple[Path, list[str], Callable]]:
    """Map each step, such as "tokenize", to Moses' script, its options, and our function."""
    folder, tokenizer = scripts / "tokenizer", moses.tokenizer(language)
    return {
        "normalize": (
            folder / "normalize-punctuation.perl",
            ["-l", language],
            moses.normalizer(language),
        ),
        "tokenize": (
            folder / "tokenizer.perl",
            ["-q", "-l", language],
            tokenizer.tokenize,
        ),
        "tokenize, aggressive": (
            folder / "tokenizer.perl",
            ["-q", "-a", "-l", language],
            partial(tokenizer.tokenize, aggressive=True),
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add, official = parser.add_argument, "a text and its published tokens; repeat for more"
    add("texts", nargs="*", type=Path, help="texts, one sentence per line")
    add("--moses", type=Path, help="mosesdecoder's folder `scripts`")
    add("--official", action="append", default=[], metavar="TEXT=TOKENS", help=official)
    add("--json", type=Path, required=True, help="file for the counts and differing lines")
    args = parser.parse_args()
    rows = []
    for path in args.texts:
        # Some scripts strip the ends of a line and some do not, so lines are compared stripped.
        lines = lines_of(path)
        for name, (script, options, ours) in steps(args.moses, language_of(path)).items():
            theirs = by_script(script, options, lines)
            stripped = [line.strip() for line in theirs]
            comparison = compare([ours(line).strip() for line in lines], stripped)
            rows.append({"text": path.name, "step": name, "against": script.name, **comparison})
    text_steps = {"lowercase_first": True, "normalize": True, "tokenize": True, "escape": True}
    for pair in args.official:
        text, tokens = map(Path, pair.split("=", 1))
        words = Pipeline("en", "de", **text_steps).words(language_of(text))
        comparison = compare([words(line) for line in lines_of(text)], lines_of(tokens))
        rows.append({"text": text.name, "step": "all", "against": tokens.name, **comparison})
    for row in rows:
        print(f"{row['text']:28} {row['step']:22} {row['different']:6} of {row['lines']:,}")
    with files.atomic_write(args.json) as file:
        file.write(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
