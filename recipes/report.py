#!/usr/bin/env python
"""Write a recipe's final report: a table of scores, speed, size and times, and sample translations.

    python recipes/report.py --dir runs/… --src en --tgt de --title TEXT

It reads what the recipe's stages wrote to ``--dir`` (``scores.json``, ``train.log``, ``hyp.LANG``,
the stage times), and writes ``results.json`` and ``results.md`` there.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fairseq_ext.evaluation.tables import aligned, markdown, verbatim
from fairseq_ext.evaluation.training_log import Training, read_training
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import EnvironmentProblem


def stage_seconds(folder: Path) -> dict[str, int]:
    """Return the wall time of each finished stage in a run's folder, in the order of finishing."""
    done = [path for path in (folder / ".stages").iterdir() if path.suffix != ".tmp"]
    done.sort(key=lambda path: path.stat().st_mtime_ns)
    return {path.name: int(path.read_text()) for path in done}


def summary(
    scores: Sequence[dict], training: Training, seconds: dict[str, int]
) -> list[tuple[str, str, str]]:
    """Return a run's table, with rows (name, value, remark); ``scores`` is its ``scores.json``."""
    speed = training.tokens_per_second
    return [
        *((score["name"], f"{score['value']:.2f}", score["signature"]) for score in scores),
        ("parameters", f"{training.parameters:,}", ""),
        ("updates", f"{training.updates:,}", ""),
        ("training speed", f"{speed:,.0f}" if speed else "–", "target tokens per second"),
        ("wall time", f"{sum(seconds.values()):,} s", times(seconds)),
    ]


def times(seconds: dict[str, int]) -> str:
    """Return one line that lists the stages with their seconds."""
    return ", ".join(f"{name} {value} s" for name, value in seconds.items())


def samples(
    text: Path, translations: Path, src: str, tgt: str, count: int
) -> list[tuple[str, str, str]]:
    """Return at most ``count`` (source, reference, translation), spread over the test set."""
    paths = text / f"test.{src}", text / f"test.{tgt}", translations / f"hyp.{tgt}"
    sides = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in paths]
    triples = list(zip(*sides, strict=True))
    count = min(count, len(triples))
    return [triples[i * len(triples) // count] for i in range(count)]


def report_run(
    folder: Path, decoded: Path, text: Path, src: str, tgt: str, title: str, count: int = 10
) -> str:
    """Write ``results.json`` and ``results.md`` to ``decoded``; return samples and table as text.

    ``folder`` is a recipe's output folder, with ``checkpoints/train.log`` and the stage times.
    ``decoded`` has ``hyp.TGT``, ``scores.json`` and, if perplexity was measured,
    ``perplexity.json``. ``text`` has the test set that ``count`` samples show, and ``title`` is the
    table's heading.
    """
    scores = [
        score
        for path in (decoded / "perplexity.json", decoded / "scores.json")
        if path.name == "scores.json" or path.exists()
        for score in json.loads(path.read_text(encoding="utf-8"))["scores"]
    ]
    training = read_training(folder / "checkpoints" / "train.log")
    seconds = stage_seconds(folder)
    rows = summary(scores, training, seconds)
    examples = samples(text, decoded, src, tgt, count)
    figures = {"title": title, "scores": scores, **asdict(training), "stages": seconds}
    write(decoded / "results.json", json.dumps(figures, ensure_ascii=False, indent=2))
    translations = markdown(
        [("source", "reference", "translation"), *(map(verbatim, row) for row in examples)]
    )
    table = markdown([("", "figure", "remark"), *rows])
    write(decoded / "results.md", f"# {title}\n\n{table}\n\n## Samples\n\n{translations}")
    listed = "".join(
        f"  source       {source}\n  reference    {reference}\n  translation  {translation}\n\n"
        for source, reference, translation in examples
    )
    return f"Sample translations\n\n{listed}{title}\n\n{aligned(rows)}"


def write(path: Path, text: str) -> None:
    """Write a text and a line feed to a file, completely or not at all."""
    with files.atomic_write(path) as file:
        file.write(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dir", type=Path, required=True, help="the run's folder")
    parser.add_argument("--src", required=True)
    parser.add_argument("--tgt", required=True)
    parser.add_argument("--title", required=True, help="the table's heading")
    parser.add_argument("--samples", type=int, default=10, help="number of translations to show")
    parser.add_argument("--decoded", default=".", help="subfolder with hyp.TGT and scores.json")
    parser.add_argument("--text", default="text", help="subfolder with the test set to show")
    args = parser.parse_args()
    try:
        decoded, text = args.dir / args.decoded, args.dir / args.text
        print(report_run(args.dir, decoded, text, args.src, args.tgt, args.title, args.samples))
    except (OSError, ValueError, EnvironmentProblem) as error:
        sys.exit(f"report: error: {error}")


if __name__ == "__main__":
    main()
