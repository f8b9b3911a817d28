"""Output of fairseq-generate, for tests of what reads it."""

from collections.abc import Sequence
from pathlib import Path

from tests.support.harness import write_lines


def write_generated(
    path: Path, hypotheses: Sequence[Sequence[str]], sources: Sequence[str] = ()
) -> Path:
    """Write what fairseq-generate prints for the hypotheses of each sentence, last one first."""
    lines = ["some log line"]
    for index in reversed(range(len(hypotheses))):
        lines.append(f"S-{index}\t{sources[index] if sources else f'source {index}'}")
        for text in hypotheses[index]:
            lines += [f"H-{index}\t-0.5\t{text}", f"D-{index}\t-0.5\t{text}", f"P-{index}\t-0.5"]
    return write_lines(path, [*lines, "Generate test with beam=2"])
