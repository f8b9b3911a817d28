"""Measure how long a model takes for single sentences, from text to text."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairseq_ext.checkpoints import bundle
from fairseq_ext.decoding.text_model import load
from fairseq_ext.evaluation.compare import Latency
from fairseq_ext.model import program_file
from fairseq_ext.model.describe import multiply_adds
from fairseq_ext.utils.errors import DataError


def measure(path: str | Path, texts: Sequence[str], beam: int) -> Latency:
    """Translate lines of text one at a time, on one thread of the CPU, and measure each.

    The model is a bundle, or a checkpoint whose dictionaries :func:`~fairseq_ext.load` finds.
    """
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise DataError("There is no text to translate: all lines of the source are empty.")
    model = load(path, threads=1, cpu=True)
    model.translate(texts[0], beam=beam)  # the first sentence also reserves memory
    seconds = []
    began = time.process_time()
    for text in texts:
        start = time.perf_counter()
        model.translate(text, beam=beam)
        seconds.append(time.perf_counter() - start)
    processor = time.process_time() - began
    median, slow = np.percentile(seconds, [50, 99]) * 1000
    counts = None
    if bundle.is_bundle(path) and bundle.has_program(path):
        program = program_file.read(path)
        counts = multiply_adds(program.program, program.weights)["target token"]
    return Latency(len(texts), median, slow, processor / len(texts) * 1000, counts)
