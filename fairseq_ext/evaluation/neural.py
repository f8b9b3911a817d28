"""Compute neural metrics, such as COMET, in a separate Python that has the metric's library.

The library may need other versions of numpy or transformers than this installation has, and its
models are pickles, which may run any code when they are loaded. So :class:`NeuralMetric` starts a
worker, a script of :mod:`fairseq_ext.evaluation.workers`, in the other Python. The worker loads the
model, and answers requests, in lines of JSON. COMET: Rei et al. 2020, "COMET: A Neural Framework
for MT Evaluation".
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import finalize

from fairseq_ext.utils.errors import ConfigError, DataError, EnvironmentProblem, wrong_value

PYTHON = "FAIRSEQ_EXT_METRIC_PYTHON"  # the environment variable that names the Python for metrics
BATCH = 16
MEMORY = "if memory was short, a smaller `--metric-batch-size` of score, compare or mbr helps."
KIND = "comet"  # the word before the colon of `--metric`
DISTRIBUTION = "unbabel-comet"
PACKAGES = f"{DISTRIBUTION} 'setuptools<81'"  # COMET's torchmetrics needs pkg_resources
EXAMPLE = "Unbabel/wmt22-comet-da"
WORKER = Path(__file__).parent / "workers" / "comet_worker.py"


class NeuralMetric:
    """A neural metric, such as COMET, computed by a process that starts at the first request.

    The process ends with this object. A metric is also a utility for minimum Bayes risk decoding
    (:data:`fairseq_ext.decoding.mbr.Utility`).

    Args:
        specification: ``comet:MODEL``, where MODEL is a folder, a checkpoint or a name on the Hub.
        python: a Python that has the metric's library. If it is None, the environment
            variable ``FAIRSEQ_EXT_METRIC_PYTHON`` names it; by default, it is the running Python.
        batch_size: number of segments in a batch.

    Raises:
        ConfigError: ``specification`` is malformed, or ``batch_size`` is below 1.
    """

    name = "COMET"
    reads_source = True

    def __init__(
        self, specification: str, python: str | None = None, batch_size: int = BATCH
    ) -> None:
        kind, _, self.model = specification.partition(":")
        if kind != KIND or not self.model:
            raise ConfigError(
                f"A neural metric must be {KIND}:MODEL, but is `{specification}` instead."
            )
        if batch_size < 1:
            raise wrong_value("--metric-batch-size", "at least 1", batch_size)
        self.specification, self.batch_size = specification, batch_size
        self.python = python or os.environ.get(PYTHON) or sys.executable
        self._process: Any = None  # a Popen, whose type does not tell that it has pipes
        self._about: dict[str, Any] = {}

    @property
    def signature(self) -> str:
        """The metric's signature: model, checksum of the weights, and version of the library."""
        about = self._started()
        return (
            f"nrefs:{int(about['reference'])}|model:{about['model']}"
            f"|sha256:{about['sha256'][:12]}|version:{about['library']}-{about['version']}"
        )

    def segments(
        self, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
    ) -> list[float]:
        """Return the score of each translation, in the metric's own unit; larger is better."""
        segments = list(zip(sources, translations, references, strict=True))
        scores = self._ask({"segments": segments})["scores"]
        return self._checked(scores, len(segments))

    def matrix(self, candidates: Sequence[str], source: str) -> list[list[float]]:
        """Score each of H candidates (row) with each of them as reference (column): ``[H][H]``.

        Raise ConfigError if the model does not read references.
        """
        if not self._started()["reference"]:
            raise ConfigError(
                f"`--utility {self.specification}` uses no reference, but MBR compares candidates "
                "with each other; choose a metric that compares two texts."
            )
        rows = self._ask({"candidates": list(candidates), "source": source})["matrix"]
        return [self._checked(row, len(candidates)) for row in rows]

    def _started(self) -> dict[str, Any]:
        """Start the worker unless it runs; return its first answer, which describes its model."""
        if self._process is None:
            command = [self.python, "-W", "ignore", os.fspath(WORKER), self.model]
            try:
                self._process = subprocess.Popen(
                    [*command, str(self.batch_size)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    encoding="utf-8",
                    env=_environment(self.python),
                )
            except OSError as error:
                raise EnvironmentProblem(
                    f"`{self.python}` cannot be run ({error.strerror}); give a Python, such as "
                    f"comet_env/bin/python, by {PYTHON} or, where the command has it, "
                    "`--metric-python`."
                ) from error
            finalize(self, _end, self._process)
            self._about = self._answer()
        return self._about

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._started()
        with suppress(BrokenPipeError):  # `_answer` reports why
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise EnvironmentProblem(
                f"The process of `{self.specification}` ({self.python}) ended with status "
                f"{self._process.wait()}; {MEMORY}"
            )
        answer = json.loads(line)
        if "error" not in answer:
            return answer
        if answer["missing"]:
            raise EnvironmentProblem(
                f"{self.python} cannot import {DISTRIBUTION} ({answer['error']}). Give it an "
                "environment of its own, `python -m venv comet_env && comet_env/bin/pip install "
                f"{PACKAGES}`, and name its Python by {PYTHON}=comet_env/bin/python or, where the "
                "command has it, `--metric-python`."
            )
        cure = MEMORY
        if not self._about:
            cure = (
                f"give a model of {DISTRIBUTION}: its folder (with `hparams.yaml` and "
                "`checkpoints/model.ckpt`), its checkpoint, or a name on the Hub, such as "
                f"{EXAMPLE}, which needs the network once, and for some a login: `hf auth login`."
            )
        raise DataError(f"`{self.specification}`: COMET ends with {answer['error']}; {cure}")

    def _checked(self, scores: list[float], count: int) -> list[float]:
        """Return the scores; raise DataError if they are not ``count`` finite numbers."""
        finite = sum(map(math.isfinite, scores))
        if len(scores) != count or finite != count:
            raise DataError(
                f"`{self.specification}` gives {finite} finite scores for {count} texts; try the "
                f"model with {DISTRIBUTION}'s own command."
            )
        return scores


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    with suppress(BrokenPipeError), process:  # the worker may have stopped reading
        pass


def named_metrics(specifications: Sequence[str], **options: Any) -> dict[str, NeuralMetric]:
    """Return neural metrics by their names in tables.

    The names are ``COMET`` or, if there are several metrics, ``COMET MODEL``. A metric that is
    given twice counts once. The arguments are as for :class:`NeuralMetric`.
    """
    metrics = [NeuralMetric(name, **options) for name in dict.fromkeys(specifications)]
    if len(specifications) == 1:
        return {metrics[0].name: metrics[0]}
    return {f"{metric.name} {metric.model}": metric for metric in metrics}


def _environment(python: str) -> dict[str, str]:
    """Return the environment variables for a process of ``python``.

    They are those of this process. Another Python than the running one gets no PYTHONPATH, because
    that variable leads to packages of the running one.
    """
    same_python = python == sys.executable
    return {
        name: value
        for name, value in os.environ.items()
        if same_python or name not in ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__")
    }
