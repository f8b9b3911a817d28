"""Measure the time and energy that a model takes for a sentence, from text to text."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairseq_ext.checkpoints import bundle
from fairseq_ext.decoding.text_model import load
from fairseq_ext.evaluation.compare import Latency
from fairseq_ext.model.describe import describe
from fairseq_ext.utils.errors import DataError

POWERCAP = Path("/sys/class/powercap")
"""Folder in which Linux keeps the energy counters (RAPL) of AMD's and Intel's processors."""


def read_energy() -> dict[Path, int]:
    """Read the energy counter of each processor package, in microjoules.

    Return {} if there are no counters, or if only root may read them, as on most systems.
    """
    with contextlib.suppress(OSError):
        return {
            name.parent: int((name.parent / "energy_uj").read_text())
            for name in POWERCAP.glob("intel-rapl:*/name")
            if name.read_text().startswith("package")  # other counters are for parts of packages
        }
    return {}


def energy_since(before: dict[Path, int]) -> float | None:
    """Return the joules used since :func:`read_energy` gave ``before``; None if that is empty."""
    spent = 0
    for package, counter in read_energy().items():
        wrap = int((package / "max_energy_range_uj").read_text())  # here the counter returns to 0
        spent += (counter - before[package]) % wrap
    return spent / 1e6 if before else None


def measure(path: str | Path, texts: Sequence[str], beam: int) -> Latency:
    """Measure time and energy of a model that translates lines one at a time, on one CPU thread.

    The model at ``path`` is a bundle, or a checkpoint whose dictionaries :func:`~fairseq_ext.load`
    finds. Empty lines are left out. Raise DataError if all lines are empty.
    """
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise DataError("There is no text to translate: all lines of the source are empty.")
    model = load(path, threads=1, cpu=True)
    model.translate(texts[0], beam=beam)  # the first sentence also reserves memory
    seconds = []
    began, before = time.process_time(), read_energy()
    for text in texts:
        start = time.perf_counter()
        model.translate(text, beam=beam)
        seconds.append(time.perf_counter() - start)
    processor, joules = time.process_time() - began, energy_since(before)
    median, slow = np.percentile(seconds, [50, 99]) * 1000
    counts = None
    if bundle.is_bundle(path):
        counts = describe(path).get("multiply_adds", {}).get("target token")
    energy = joules and joules / len(texts)
    return Latency(len(texts), median, slow, processor / len(texts) * 1000, counts, energy)
