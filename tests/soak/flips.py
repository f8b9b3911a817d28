"""Bit flips in a checkpoint: each is noticed, or changes nothing that is loaded."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

from fairseq_ext import register
from fairseq_ext.checkpoints.storage import load as load_checkpoint
from fairseq_ext.utils.errors import CheckpointError
from tests.soak.report import Report, parser
from tests.support.harness import binarize, digits_corpus, fairseq
from tests.support.trainings import ARCHITECTURES, TRAINING, same_state


def outcome(path: Path, healthy: dict) -> str:
    """``refused``, ``identical``, or what else happened."""
    try:
        loaded = load_checkpoint(path)
    except CheckpointError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "identical" if same_state(loaded, healthy) else "loaded with other content"


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--flips", type=int, default=700, metavar="N")
    args = options.parse_args()
    report = Report("flips", args)
    register()
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = binarize(digits_corpus(folder / "text", train=110, valid=10), folder / "bin")
        run = (*ARCHITECTURES["gru_tiny"], *TRAINING, "--max-update", 3)
        fairseq("train", data, *run, "--save-dir", folder / "run")
        source = folder / "run" / "checkpoint_last.pt"
        content, healthy = source.read_bytes(), load_checkpoint(source)
        outcomes: Counter[str] = Counter()
        failures = []
        for number in range(args.flips):
            place, bit = draw.randrange(len(content)), draw.randrange(8)
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path = folder / f"{number}.pt"  # a new name: tensors are mapped from the file
            path.write_bytes(damaged)
            ended = outcome(path, healthy)
            path.unlink()
            outcomes[ended] += 1
            if ended not in ("refused", "identical"):
                failures.append(f"bit {bit} of byte {place:,}: {ended}")
        report.add(
            "bit flips in a checkpoint",
            count=args.flips,
            failures=failures,
            bytes=len(content),
            refused=outcomes["refused"],
            identical=outcomes["identical"],
        )
    report.end()


if __name__ == "__main__":
    main()
