"""Compare ``fairseq-ext corpus`` with sacremoses and subword-nmt: time and memory of preparation.

``python benchmarks/preprocessing.py --json docs/results/preprocessing.json``

- Corpus: pairs of Tatoeba, repeated with other digits each time. Some pairs are spoilt, so that
  cleaning has something to drop.
- Ours: what ``fairseq-ext corpus`` does with an archive of these pairs, which is to normalize,
  tokenize, clean, split, encode into subwords, and write checksums and a manifest.
- Peers: the commands ``sacremoses normalize tokenize`` and ``subword-nmt apply-bpe``, for
  each side of the corpus.
- All use the same byte-pair merges. Learning the merges is not timed.
- Check: for all pairs that our cleaning keeps, the subwords must be equal.
- Memory: the largest sum of the resident memory of all processes, measured ten times a second. A
  page that several processes share counts once for each of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import watching

BIN = Path(sys.executable).parent
OURS = "ours"
SIDES = ("en", "de")
LONGEST, RATIO = 80, 9.0  # cleaning as for WMT14
MERGES = 8_000
BASE = 20_000  # number of different pairs, which are then repeated
SAMPLED = 0.1  # seconds between two looks at the memory


# ---- the corpus ----------------------------------------------------------------------------------


def varied_pairs(base: Sequence[tuple[str, str]], number: int) -> Iterator[tuple[str, str]]:
    """Yield ``number`` pairs: ``base`` again and again, with other digits each time.

    Every third pair is joined with the pair before it. One pair in a hundred has an empty target,
    and one in a hundred has a source that is far too long.
    """
    for place in range(number):
        round_, index = divmod(place, len(base))
        if index == 0:
            digits = list("0123456789")
            Random(round_).shuffle(digits)
            table = str.maketrans("0123456789", "".join(digits))
        pair = base[index]
        if place % 3 == 2:
            pair = tuple(map("; ".join, zip(pair, base[index - 1], strict=True)))
        source, target = (side.translate(table) for side in pair)
        if place % 100 == 40:
            target = ""
        elif place % 100 == 80:
            source = " ".join([source] * (LONGEST + 1))
        yield source, target


def write_pairs(folder: Path, name: str, pairs: Iterator[tuple[str, str]]) -> None:
    """Write the two sides of pairs to the files ``{name}.en`` and ``{name}.de`` of a folder."""
    with (
        (folder / f"{name}.en").open("w", encoding="utf-8", newline="\n") as source,
        (folder / f"{name}.de").open("w", encoding="utf-8", newline="\n") as target,
    ):
        for first, second in pairs:
            source.write(f"{first}\n")
            target.write(f"{second}\n")


# ---- running and watching ------------------------------------------------------------------------


def run_jobs(jobs: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Run jobs at the same time; each job runs its shell commands one after the other.

    Return the seconds until the last job ends, and the peak memory of all jobs together in MiB. If
    a command fails, end this script.
    """
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONUTF8": "1"}
    began = " ".join(f"( {' && '.join(commands)} ) & jobs+=($!);" for commands in jobs)
    script = f'{began} for job in "${{jobs[@]}}"; do wait "$job" || exit 1; done'
    watch = watching.watched(["bash", "-c", script], look=SAMPLED, env=environment)
    return watch.seconds, watch.total


def peer_commands(work: Path, name: str, side: str, processes: int) -> list[str]:
    """Return the commands of sacremoses and subword-nmt for one side of the text ``name``."""
    raw, tokens, pieces = (work / part / f"{name}.{side}" for part in ("raw", "tokens", "pieces"))
    bpe = f"subword-nmt apply-bpe --num-workers {processes} -c {work / 'codes'}"
    return [
        f"sacremoses -q -l {side} -j {processes} normalize tokenize <{raw} >{tokens}",
        f"{bpe} -i {tokens} -o {pieces}",
    ]


def our_command(work: Path, name: str, workers: int) -> list[str]:
    """Return the shell commands that run :func:`prepare` in a new process and a new folder."""
    out = work / "ours"
    words = [sys.executable, __file__, OURS, work / "raw", name, work / "codes", out, workers]
    return [f"rm -rf {out}", " ".join(map(str, words))]


def learn(pairs: Sequence[tuple[str, str]], codes: Path) -> None:
    """Learn byte-pair merges from the pairs' tokens, and write them to the file ``codes``."""
    from fairseq_ext.corpora.streams import KEPT, Encode
    from fairseq_ext.text.pipeline import Pipeline
    from fairseq_ext.text.subwords import learn_merges

    pipeline = Pipeline(*SIDES, normalize=True, tokenize=True, escape=True)
    encoded = Encode(pipeline, words=True)(pairs)
    tokens = [(source, target) for fate, source, target in encoded if fate == KEPT]
    sides = zip(*tokens, strict=True)
    texts = [codes.with_name(f"learn.{side}") for side in SIDES]
    for path, side in zip(texts, sides, strict=True):
        path.write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    learn_merges(texts, codes, MERGES)


def prepare(folder: Path, name: str, codes: Path, out: Path, workers: int) -> None:
    """Prepare a corpus as ``fairseq-ext corpus`` does, but with existing byte-pair merges.

    Args:
        folder: folder with the training text ``{name}.en`` and ``{name}.de``, and with
            held-out.en and held-out.de, used as validation and test set.
        name: name of the training text.
        codes: file of merges.
        out: folder to write.
        workers: number of processes.
    """
    from fairseq_ext.corpora import official
    from fairseq_ext.corpora.catalogue import Corpus, Source

    def source(name: str) -> tuple[Source]:
        return (Source(name, f"{name}.{{language}}"),)

    corpus = Corpus(
        *SIDES,
        train=source(name),
        valid=source("held-out"),
        test=source("held-out"),
        normalize=True,
        rules=(f"length=1:{LONGEST}", f"ratio={RATIO}", "token=1000"),
        merges=MERGES,
    )
    # Learning is not measured.
    official.learn = lambda kind, texts, size, folder: shutil.copy(codes, folder / "codes")
    official.Preparation(name, corpus, out, out / "download", str(folder), workers).run()


def ways(work: Path, name: str) -> dict[tuple[str, int], list[list[str]]]:
    """Return ``{(system, cores): jobs}``: the jobs for :func:`run_jobs` by which a system runs."""
    sides = {n: [peer_commands(work, name, side, n) for side in SIDES] for n in (1, 2)}
    return {
        (OURS, 2): [our_command(work, name, 2)],
        (OURS, 1): [our_command(work, name, 1)],
        ("command lines, both with two processes", 2): [list(chain(*sides[2]))],
        ("command lines, the two sides at once", 2): sides[1],
        ("command lines", 1): [list(chain(*sides[1]))],
    }


# ---- the results ---------------------------------------------------------------------------------


def require_equal(work: Path, name: str) -> None:
    """End this script if our subwords differ from those of sacremoses and subword-nmt.

    Only pairs that our cleaning keeps are compared: both sides have 1 to 80 tokens, and neither
    side has more than 9 times as many as the other.
    """

    def lines(folder: str, side: str, name: str = name) -> list[str]:
        return (work / folder / f"{name}.{side}").read_text(encoding="utf-8").split("\n")[:-1]

    stays = []
    for pair in zip(*(lines("tokens", side) for side in SIDES), strict=True):
        low, high = sorted(len(line.split()) for line in pair)
        stays.append(low > 0 and high <= min(LONGEST, RATIO * low))
    for side in SIDES:
        expected = list(itertools.compress(lines("pieces", side), stays))
        if lines("ours/bpe", side, "train") != expected:
            raise SystemExit(f"{side}: our pieces are not those of the command lines")


def measure(options: Namespace, work: Path) -> list[dict[str, Any]]:
    """Time all systems with the smaller corpus and ours with the larger; return a row for each."""
    rows = {method: {"name": method[0], "cores": method[1]} for method in ways(work, "small")}
    trials = {method: [] for method in rows}
    for _ in range(options.rounds):
        for method, jobs in ways(work, "small").items():
            trials[method].append(run_jobs(jobs))
            print(*method, *trials[method][-1], file=sys.stderr)
            if method[0] != OURS:
                require_equal(work, "small")
    large = {
        "name": OURS,
        "cores": 2,
        **figures(options.pairs, 2, [run_jobs(ways(work, "large")[OURS, 2])]),
    }
    return [
        large,
        *(
            row | figures(options.peer_pairs, method[1], trials[method])
            for method, row in rows.items()
        ),
    ]


def figures(pairs: int, cores: int, trials: list[tuple[float, float]]) -> dict[str, Any]:
    """Summarize ``trials`` (seconds, MiB) in a row: speed of the median run, and largest memory."""
    seconds, peaks = map(list, zip(*trials, strict=True))
    speed = pairs / statistics.median(seconds)
    return {
        "pairs": pairs,
        "seconds": seconds,
        "peak_mib": max(peaks),
        "pairs_per_second": speed,
        "per_core": speed / cores,
    }


def parse() -> Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--pairs", type=int, default=1_000_000, help="pairs that only ours prepares (1,000,000)")
    add("--peer-pairs", type=int, default=100_000, help="pairs that all prepare (100,000)")
    add("--rounds", type=int, default=3, help="rounds in which all take turns (3)")
    add("--json", type=Path, metavar="FILE.json", help="write the figures there")
    add("--work", type=Path, help="folder to keep the texts in (a temporary one)")
    return parser.parse_args()


def main() -> None:
    from fairseq_ext.corpora.tatoeba import sample
    from fairseq_ext.evaluation import tables

    options = parse()
    with tempfile.TemporaryDirectory(prefix="preprocessing-") as temporary:
        work = options.work or Path(temporary)
        for folder in ("raw", "tokens", "pieces"):
            (work / folder).mkdir(parents=True, exist_ok=True)
        base = sample({"train": min(BASE, options.pairs)})["train"]
        for name, number in (("small", options.peer_pairs), ("large", options.pairs)):
            write_pairs(work / "raw", name, varied_pairs(base, number))
        write_pairs(work / "raw", "held-out", iter(base[:100]))
        learn(base, work / "codes")
        rows = measure(options, work)
        manifest = json.loads((work / "ours/manifest.json").read_text(encoding="utf-8"))
        shutil.rmtree(work / "ours")
    columns = [name for name in rows[0] if name != "seconds"]
    print(tables.aligned([columns, *([_cell(row[name]) for name in columns] for row in rows)]))
    if options.json:
        import bench

        logging.getLogger().setLevel(logging.WARNING)  # fairseq's import has chosen another
        bench.save(
            options.json,
            title="Preparing a corpus: normalize, tokenize, clean, byte-pair encoding",
            settings={"rounds": options.rounds, "merges": MERGES, "longest": LONGEST},
            **{"pairs and tokens": manifest["fates"]["large"]},
            figures=rows,
        )


def _cell(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}"


if __name__ == "__main__":
    if sys.argv[1:2] == [OURS]:
        folder, name, codes, out, workers = sys.argv[2:]
        prepare(Path(folder), name, Path(codes), Path(out), int(workers))
    else:
        main()
