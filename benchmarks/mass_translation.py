"""Measure `fairseq-ext translate --parts`: memory, speed of several workers, and safety from kills.

    fairseq-ext bundle average.pt --data bin --numbers int8 -o model
    python benchmarks/mass_translation.py model --text test.en \\
        --json docs/results/mass_translation.json

The command cuts a text into parts, which several processes (workers) can translate together. Each
worker has one thread here. The file --text is repeated until it has the number of lines to
translate. Times run from the start of the workers to the end of the last one.

  memory   for each number of lines in --lines: the largest resident memory of one worker, and lines
           per second
  workers  for each number of workers in --workers: lines per second of all workers together. The
           numbers take turns, in --repeats rounds
  kills    a worker is killed and started again, up to --kills times at random moments. The output
           is compared with that of `fairseq-ext translate` without --parts: missing lines, surplus
           lines, and whether all bytes are equal
"""

import filecmp
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

import bench
from watching import ENVIRONMENT, Watch

COMMAND = (sys.executable, "-m", "fairseq_ext", "translate")


def arguments() -> Namespace:
    parser = bench.parser_with(__doc__, repeats=3)
    add = parser.add_argument
    add("model", type=Path, help="a bundle, or a checkpoint with --data")
    add("--data", type=Path, help="folder of fairseq-preprocess")
    add("--text", type=Path, required=True, help="file of source sentences")
    add("--lines", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="for memory")
    add("--speed-lines", type=int, default=100_000, help="lines for workers and kills")
    add("--workers", type=int, nargs="+", default=[1, 2], help="numbers of processes")
    add("--kills", type=int, default=20, help="most kills of a worker")
    add("--part-lines", type=int, default=2_000, help="lines in a part")
    add("--beam", type=int, default=5, help="hypotheses in the beam")
    return parser.parse_args()


class Texts:
    """Source texts of any number of lines in a folder, and commands that translate them."""

    def __init__(self, options: Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self._number = itertools.count()

    def source(self, lines: int) -> Path:
        """Write the text, repeated up to this number of lines; return its path."""
        path = self.folder / f"{lines}.txt"
        if not path.exists():
            with self.options.text.open("rb") as file:
                text_lines = [line.rstrip(b"\n") + b"\n" for line in file]
            with path.open("wb") as file:
                file.writelines(itertools.islice(itertools.cycle(text_lines), lines))
        return path

    def plain(self, lines: int) -> list[str]:
        """Return the command that translates the text without dividing it into parts."""
        data = [] if self.options.data is None else [self.options.data]
        words = [*COMMAND, *data, "--path", self.options.model, "--input", self.source(lines)]
        words += ["--beam", self.options.beam, "--cpu", "--max-len-a", 1.5, "--max-len-b", 10]
        return [str(word) for word in words]

    def in_parts(self, lines: int) -> tuple[list[str], Path]:
        """Return a command that translates in parts in a new folder, and the path of its output."""
        number = next(self._number)
        output, parts = self.folder / f"whole-{number}", self.folder / f"parts-{number}"
        part_options = ["--parts", parts, "--part-lines", self.options.part_lines, "-o", output]
        return [*self.plain(lines), *map(str, part_options)], output


def start(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.DEVNULL)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process; end this script if the process fails."""
    if process.wait():
        raise SystemExit(f"{process.args} ended with {process.returncode}")


def time_workers(texts: Texts, lines: int, workers: int) -> dict[str, float]:
    """Let several workers translate one text of ``lines`` lines together.

    Return the seconds, the lines per second, and the MiB of the worker that needed the most memory.
    """
    words, output = texts.in_parts(lines)
    with ExitStack() as stack:
        processes = [start(words) for _ in range(workers)]
        watches = [stack.enter_context(Watch(process.pid)) for process in processes]
        for process in processes:
            finish(process)
    output.unlink()
    seconds, peak = watches[0].seconds, max(watch.peak for watch in watches)
    return {"seconds": seconds, "lines_per_second": lines / seconds, "peak_mib": peak}


def memory(texts: Texts) -> list[dict[str, float]]:
    rows = []
    for lines in texts.options.lines:
        rows.append({"lines": lines, **time_workers(texts, lines, 1)})
        print(rows[-1], flush=True)
    return rows


def workers(texts: Texts) -> list[dict[str, float]]:
    """Measure the speed of each number of workers, in turn; return a row for each number."""
    lines, speeds = texts.options.speed_lines, {}
    for _, count in itertools.product(range(texts.options.repeats), texts.options.workers):
        speeds.setdefault(count, []).append(time_workers(texts, lines, count)["lines_per_second"])
    rows = []
    for count, figures in speeds.items():
        middle = statistics.median(figures)
        rows.append({"workers": count, "lines": lines, "lines_per_second": middle})
        rows[-1] |= {"per_worker": middle / count, "rounds": figures}
        print(rows[-1], flush=True)
    return rows


def kills(texts: Texts) -> dict[str, object]:
    """Kill and restart a worker at random moments; at last let it finish.

    Return the number of kills, and how the output differs from that of a command without parts.
    """
    options = texts.options
    draw = random.Random(1)
    expected = texts.folder / "plain"
    began = time.perf_counter()
    finish(start([*texts.plain(options.speed_lines), "-o", str(expected)]))
    duration = time.perf_counter() - began
    words, output = texts.in_parts(options.speed_lines)
    killed = 0
    while killed < options.kills:
        process = start(words)
        try:
            process.wait(draw.uniform(0, 2 * duration / options.kills))
            break  # the worker has finished
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    finish(start(words))
    with expected.open("rb") as expected_file, output.open("rb") as output_file:
        surplus = sum(1 for _ in output_file) - sum(1 for _ in expected_file)
    figures = {
        "kills": killed,
        "lines": options.speed_lines,
        "lost": max(-surplus, 0),
        "doubled": max(surplus, 0),
        "bytes_equal": filecmp.cmp(expected, output, shallow=False),
    }
    print(figures, flush=True)
    return figures


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as temporary:
        texts = Texts(options, Path(temporary))
        results = {"memory": memory(texts), "workers": workers(texts), "kills": kills(texts)}
    settings = bench.settings(options, without=("json", "model", "data", "text"))
    bench.save(options.json, title="Translation in parts", settings=settings, **results)


if __name__ == "__main__":
    main()
