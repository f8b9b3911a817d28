"""Preparing a corpus: ours against the command lines of sacremoses and subword-nmt.

``python benchmarks/preprocessing.py --json docs/results/preprocessing.json``

English and Spanish pairs of Tatoeba are repeated, each time with other digits, and some are spoilt
so that cleaning has something to drop. Ours is what ``fairseq-ext corpus`` does with an archive
of them: normalize, tokenize, clean, split, byte-pair encoding, checksums and manifest. The peers
are, for each side, ``sacremoses normalize tokenize`` and ``subword-nmt apply-bpe``. Learning the
merges is not timed: all get the same file. Their pieces must be equal, but for the pairs that ours
drops.

Memory is the largest sum of the resident memory of all processes, looked at ten times a second
(pages that processes share count for each of them).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random

import watching

BIN = Path(sys.executable).parent
OURS = "ours"
SIDES = ("en", "de")
LONGEST, RATIO = 80, 9.0  # as for WMT14
MERGES = 8_000
BASE = 20_000  # different pairs, before they are repeated
SAMPLED = 0.1  # seconds between two looks at the memory


@dataclass
class Figure:
    """Cost of one way of preparing a corpus.

    Attributes:
        name: of the way.
        cores: how many it may use.
        pairs: sentence pairs read.
        seconds: wall time of each round.
        peak_mib: resident memory of all its processes, the largest of all rounds.
    """

    name: str
    cores: int
    pairs: int
    seconds: list[float] = field(default_factory=list)
    peak_mib: float = 0.0

    @property
    def speed(self) -> float:
        """Pairs per second, by the median of the rounds."""
        return self.pairs / statistics.median(self.seconds)

    def row(self) -> dict[str, object]:
        """The figure as plain data."""
        speeds = {"pairs_per_second": self.speed, "per_core": self.speed / self.cores}
        return {**vars(self), **speeds}


# ---- the corpus ----------------------------------------------------------------------------------


def base_pairs(number: int) -> list[tuple[str, str]]:
    """Return ``number`` of the English and Spanish pairs that come with the package."""
    from fairseq_ext.corpora.tatoeba import sample

    return sample({"train": number})["train"]


def perturbed(base: Sequence[tuple[str, str]], number: int) -> Iterator[tuple[str, str]]:
    """Yield ``number`` pairs: ``base`` again and again, with other digits each time.

    Every third is joined with the one after it; one in a hundred has an empty side, and another
    one is far too long.
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
    """Write ``name.en`` and ``name.de``."""
    with (
        (folder / f"{name}.en").open("w", encoding="utf-8", newline="\n") as source,
        (folder / f"{name}.de").open("w", encoding="utf-8", newline="\n") as target,
    ):
        for first, second in pairs:
            source.write(f"{first}\n")
            target.write(f"{second}\n")


# ---- running and watching ------------------------------------------------------------------------


def watched(jobs: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Run shell commands, each job's one after the other and the jobs at the same time.

    Returns:
        Seconds, and the peak of their resident memory in MiB.

    Raises:
        RuntimeError: a command failed.
    """
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONUTF8": "1"}
    began = " ".join(f"( {' && '.join(commands)} ) & jobs+=($!);" for commands in jobs)
    script = f'{began} for job in "${{jobs[@]}}"; do wait "$job" || exit 1; done'
    with watching.timed() as times:
        process = subprocess.Popen(["bash", "-c", script], env=environment)
        watch = watching.Watch(process.pid, look=SAMPLED)
        watch.start()
        process.wait()
        watch.end()
    if process.returncode:
        raise RuntimeError(f"a command of these failed: {jobs}")
    return times["seconds"], watch.total / 2**20


def peer_commands(work: Path, name: str, side: str, processes: int) -> list[str]:
    """Return the two command lines for one side, as in their documentation."""
    raw, tokens, pieces = (work / part / f"{name}.{side}" for part in ("raw", "tokens", "pieces"))
    bpe = f"subword-nmt apply-bpe --num-workers {processes} -c {work / 'codes'}"
    return [
        f"sacremoses -q -l {side} -j {processes} normalize tokenize <{raw} >{tokens}",
        f"{bpe} -i {tokens} -o {pieces}",
    ]


def our_command(work: Path, name: str, workers: int) -> list[str]:
    """Return the command for our whole preparation, which starts anew in its own process."""
    out = work / "ours"
    words = [sys.executable, __file__, OURS, work / "raw", name, work / "codes", out, workers]
    return [f"rm -rf {out}", " ".join(map(str, words))]


def learn(pairs: Sequence[tuple[str, str]], codes: Path) -> None:
    """Write merges learnt from the pairs' tokens."""
    from fairseq_ext.corpora.streams import Encode
    from fairseq_ext.text.pipeline import Pipeline
    from fairseq_ext.text.subwords import learn_merges

    pipeline = Pipeline(*SIDES, normalize=True, tokenize=True, escape=True)
    sources, targets, _ = Encode(pipeline, words=True)(pairs)
    texts = [codes.with_name(f"learn.{side}") for side in SIDES]
    for path, side in zip(texts, (sources, targets), strict=True):
        path.write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    learn_merges(texts, codes, MERGES)


def prepare(folder: Path, name: str, codes: Path, out: Path, workers: int) -> None:
    """Prepare like ``fairseq-ext corpus``, from two plain files and with merges learnt already.

    Args:
        folder: NAME.en and NAME.de are the training text, held-out.en and .de the other two.
        name: of the training text.
        codes: the merges.
        out: folder to write.
        workers: processes.
    """
    from fairseq_ext.corpora import preparation
    from fairseq_ext.corpora.catalogue import Corpus, Limits, Source

    def source(name: str) -> tuple[Source]:
        return (Source(name, tuple(f"{name}.{side}" for side in SIDES)),)

    corpus = Corpus(
        *SIDES,
        train=source(name),
        valid=source("held-out"),
        test=source("held-out"),
        normalize=True,
        limits=Limits(LONGEST, RATIO),
        merges=MERGES,
    )
    # Learning is not what is measured.
    preparation.learn = lambda kind, texts, size, folder: shutil.copy(codes, folder / "codes")
    preparation.Preparation(name, corpus, out, out / "download", str(folder), workers).run()


def ways(work: Path, name: str) -> dict[tuple[str, int], list[list[str]]]:
    """Each way of preparing ``name``, by its name and cores: jobs that run at the same time."""
    sides = {n: [peer_commands(work, name, side, n) for side in SIDES] for n in (1, 2)}
    return {
        (OURS, 2): [our_command(work, name, 2)],
        (OURS, 1): [our_command(work, name, 1)],
        ("command lines, both with two processes", 2): [list(chain(*sides[2]))],
        ("command lines, the two sides at once", 2): sides[1],
        ("command lines", 1): [list(chain(*sides[1]))],
    }


# ---- what came out -------------------------------------------------------------------------------


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def kept(source: str, target: str) -> bool:
    """Whether cleaning keeps the pair: both sides have 1 to 80 tokens, at most 9 times as many."""
    counts = sorted((len(source.split()), len(target.split())))
    return counts[0] > 0 and counts[1] <= LONGEST and counts[1] <= RATIO * counts[0]


def difference(work: Path, name: str) -> str:
    """Say how our pieces differ from those of the command lines that ran last; empty if equal."""
    tokens = zip(*(lines_of(work / "tokens" / f"{name}.{side}") for side in SIDES), strict=True)
    stays = [kept(*pair) for pair in tokens]
    for side in SIDES:
        theirs = lines_of(work / "pieces" / f"{name}.{side}")
        expected = [line for line, keep in zip(theirs, stays, strict=True) if keep]
        pieces = lines_of(work / "ours" / "bpe" / f"train.{side}")
        if len(pieces) != len(expected):
            return f"{side}: {len(pieces)} lines instead of {len(expected)}"
        for number, (ours, other) in enumerate(zip(pieces, expected, strict=True), 1):
            if ours != other:
                return f"{side}, kept line {number}: `{ours}` instead of `{other}`"
    return ""


def measure(options: Namespace, work: Path) -> list[Figure]:
    """Time all methods on the smaller corpus in turn, then ours on the larger one.

    Raises:
        RuntimeError: a command failed, or ours and theirs differ.
    """
    figures = {method: Figure(*method, options.peer_pairs) for method in ways(work, "small")}
    for _ in range(options.rounds):
        for method, jobs in ways(work, "small").items():
            _add(figures[method], *watched(jobs))
            if method[0] != OURS and (wrong := difference(work, "small")):
                raise RuntimeError(f"ours and `{method[0]}` are not equal: {wrong}")
    large = Figure(OURS, 2, options.pairs)
    _add(large, *watched(ways(work, "large")[OURS, 2]))
    return [large, *figures.values()]


def _add(figure: Figure, seconds: float, peak: float) -> None:
    figure.seconds.append(seconds)
    figure.peak_mib = max(figure.peak_mib, peak)
    print(
        f"{figure.name}, {cores(figure.cores)}, {figure.pairs:,} pairs: {seconds:.1f} s, "
        f"{peak:,.0f} MiB",
        file=sys.stderr,
    )


def findings(figures: Sequence[Figure]) -> dict[str, float]:
    """Compute our speed over the command lines' on the same work, and our largest memory."""
    large, *small = figures
    ours = {figure.cores: figure.speed for figure in small if figure.name == OURS}
    ratios = {
        f"times as fast as {figure.name}, {cores(figure.cores)}": ours[figure.cores] / figure.speed
        for figure in small
        if figure.name != OURS
    }
    return {**ratios, "peak MiB of ours on all pairs": large.peak_mib}


def table(figures: Sequence[Figure]) -> str:
    """Format the figures, a line for each."""
    rows = [f"{'':40} {'cores':>5} {'pairs':>9} {'s':>7} {'pairs/s':>8} {'per core':>8} {'MiB':>6}"]
    for figure in figures:
        seconds = statistics.median(figure.seconds)
        rows.append(
            f"{figure.name:40} {figure.cores:5} {figure.pairs:9,} {seconds:7.1f} "
            f"{figure.speed:8,.0f} {figure.speed / figure.cores:8,.0f} {figure.peak_mib:6,.0f}"
        )
    return "\n".join(rows)


def fates_of(out: Path) -> dict[str, list[int]]:
    """Return the pairs of the larger corpus, and the tokens of both sides, by fate."""
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    return manifest["fates"]["large"]


def save(
    options: Namespace,
    figures: Sequence[Figure],
    summary: dict[str, float],
    fates: dict[str, list[int]],
) -> None:
    """Write the figures as JSON."""
    import bench

    logging.getLogger().setLevel(logging.WARNING)  # fairseq's import has chosen another
    bench.save(
        options.json,
        title="Preparing a corpus: normalize, tokenize, clean, byte-pair encoding",
        settings={"rounds": options.rounds, "merges": MERGES, "longest": LONGEST},
        **{"pairs and tokens": fates},
        figures=[figure.row() for figure in figures],
        findings=summary,
    )


def cores(number: int) -> str:
    return "1 core" if number == 1 else f"{number} cores"


def parse() -> Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--pairs", type=int, default=1_000_000, help="that ours prepares (1,000,000)")
    add("--peer-pairs", type=int, default=100_000, help="the first of them, for all (100,000)")
    add("--rounds", type=int, default=3, help="of all in turn (3)")
    add("--json", type=Path, metavar="FILE.json", help="write the figures there")
    add("--work", type=Path, help="folder for the texts, kept (a temporary one)")
    return parser.parse_args()


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="preprocessing-") as temporary:
        work = options.work or Path(temporary)
        for folder in ("raw", "tokens", "pieces"):
            (work / folder).mkdir(parents=True, exist_ok=True)
        base = base_pairs(min(BASE, options.pairs))
        for name, number in (("small", options.peer_pairs), ("large", options.pairs)):
            write_pairs(work / "raw", name, perturbed(base, number))
        write_pairs(work / "raw", "held-out", iter(base[:100]))
        learn(base, work / "codes")
        figures = measure(options, work)
        fates = fates_of(work / "ours")
        shutil.rmtree(work / "ours")
    summary = findings(figures)
    if options.json:
        save(options, figures, summary, fates)
    print(table(figures))
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == [OURS]:
        folder, name, codes, out, workers = sys.argv[2:]
        prepare(Path(folder), name, Path(codes), Path(out), int(workers))
    else:
        main()
