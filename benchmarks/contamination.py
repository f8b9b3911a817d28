"""Measure the time of `fairseq-ext corpus contamination`, and how many near-duplicates it finds.

    python benchmarks/contamination.py --lines 10000000 --json docs/results/contamination.json

The command looks for test sentences in a training text: here random sentences of 1 to 40 words, in
which the n-th word of the vocabulary has a frequency proportional to 1 / n. The script replaces
``--planted`` lines of this text by near-duplicates of test sentences: a word is exchanged, left out
or added.
"""

import json
import random
import sys
import tempfile
from itertools import accumulate
from pathlib import Path

import bench
import watching

COMMAND = (sys.executable, "-m", "fairseq_ext", "corpus", "contamination")
SHORTEST = 6  # words of a test sentence; with fewer than five, nothing is a near-duplicate
LONGEST = 40


def near_duplicate(words: list[str], draw: random.Random) -> list[str]:
    """Return a copy of a sentence in which a random word is exchanged, left out or added."""
    place = draw.randrange(len(words))
    return (
        words[:place] + draw.choice([[], ["altered"], ["added", words[place]]]) + words[place + 1 :]
    )


def main() -> None:
    parser = bench.parser_with(__doc__, vocabulary=50_000)
    parser.add_argument("--lines", type=int, default=10_000_000, help="lines of training text")
    parser.add_argument("--planted", type=int, default=1_000, help="near-duplicates in it")
    options = parser.parse_args()
    draw = random.Random(1)
    vocabulary = [f"w{number}" for number in range(options.vocabulary)]
    weights = list(accumulate(1 / rank for rank in range(1, options.vocabulary + 1)))

    def sentence(shortest: int) -> list[str]:
        return draw.choices(vocabulary, cum_weights=weights, k=draw.randint(shortest, LONGEST))

    test = [sentence(SHORTEST) for _ in range(3 * options.planted)]
    places = dict(zip(draw.sample(range(options.lines), options.planted), test, strict=False))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test").write_text("".join(" ".join(words) + "\n" for words in test))
        with (folder / "train").open("w") as file:
            for number in range(options.lines):
                words = near_duplicate(places[number], draw) if number in places else sentence(1)
                file.write(" ".join(words) + "\n")
        command = [*COMMAND, folder / "test", "--training", folder / "train"]
        watch = watching.watched([*command, "-o", folder / "found"])
        records = map(json.loads, (folder / "found").read_text().splitlines())
        lines = {record["line"] for record in records}
        found = len(lines.intersection(places))
    row = {"lines": options.lines, "planted": options.planted, "planted_found": found}
    row |= {"other_lines_found": len(lines) - found, "seconds": watch.seconds}
    row |= {"cpu_seconds": watch.cpu_seconds, "peak_mib": watch.peak}
    print(row)
    settings = bench.settings(options, without=("json",))
    bench.save(
        options.json, title="Near-duplicates in training text", settings=settings, rows=[row]
    )


if __name__ == "__main__":
    main()
