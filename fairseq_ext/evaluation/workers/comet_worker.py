"""Compute COMET in a Python that has its library: requests and answers are lines of JSON.

    python comet_worker.py MODEL BATCH_SIZE

MODEL is a checkpoint, its folder, or a name on the Hugging Face Hub. The first line of output
describes the model. Then, until the input ends::

    {"segments": [[source, translation, reference], …]}   ->   {"scores": [one per segment]}
    {"candidates": [H texts], "source": text}              ->   {"matrix": H rows of H scores}

In the matrix, row i and column j have the score of candidate i with candidate j as its reference.
After an error, the program answers ``{"error": text, "missing": true or false}`` and ends;
``missing`` says whether the library cannot be imported. Output of libraries goes to standard error,
so that it does not mix with the answers. The program also ends when its parent ends.
"""

import hashlib
import importlib.metadata
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

DISTRIBUTION = "unbabel-comet"


def checkpoint_of(model: str, comet: Any) -> tuple[Path, str]:
    """Return a COMET model's file of weights, downloaded if needed, and the model's name.

    ``model`` is a path, or a name that the module ``comet`` can download.
    """
    path = Path(model)
    if path.is_dir():
        path = path / "checkpoints" / "model.ckpt"
    elif not path.is_file():
        return Path(comet.download_model(model)), model
    # COMET reads the model's settings from the parent of the weights' folder.
    return path, path.absolute().parent.parent.name


def sha256(path: Path) -> str:
    """Return the SHA-256 checksum of a file, 64 hexadecimal digits; read the file in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Comet:
    """A COMET model, which scores ``batch_size`` segments at once."""

    def __init__(self, model: str, batch_size: int) -> None:
        import comet
        import torch

        logging.disable(logging.WARNING)  # silences Lightning's advice at every request
        path, self.name = checkpoint_of(model, comet)
        self.sha256 = sha256(path)
        self.model = comet.load_from_checkpoint(os.fspath(path))
        self.model.eval()
        self.gpus = int(torch.cuda.is_available())
        self.batch_size = batch_size

    def about(self) -> dict[str, Any]:
        """Return the worker's first answer: library, version and model."""
        segments = getattr(self.model.hparams, "input_segments", None) or ()
        return {
            "library": DISTRIBUTION,
            "version": importlib.metadata.version(DISTRIBUTION),
            "model": self.name,
            "sha256": self.sha256,
            "reference": bool(self.model.requires_references() or "ref" in segments),
        }

    def scores(self, segments: Sequence[Sequence[str]]) -> list[float]:
        """Return the score of each segment, a triple of source, translation and reference."""
        samples = [dict(zip(("src", "mt", "ref"), segment)) for segment in segments]  # noqa: B905  3.8
        prediction = self.model.predict(
            samples,
            batch_size=self.batch_size,
            gpus=self.gpus,
            progress_bar=sys.stderr.isatty(),
        )
        return [float(score) for score in prediction.scores]

    def matrix(self, candidates: Sequence[str], source: str) -> list[list[float]]:
        """Score each of H candidates (row) with each of them as reference (column): ``[H][H]``."""
        if type(self.model).__name__ != "RegressionMetric":  # encodes sentences together
            flat = self.scores(
                [(source, candidate, other) for candidate in candidates for other in candidates]
            )
            return [flat[i : i + len(candidates)] for i in range(0, len(flat), len(candidates))]
        import torch

        # A sentence's vector depends on no other sentence: compute H + 1 vectors, not 3 H².
        model = self.model.to("cuda") if self.gpus else self.model
        with torch.inference_mode():
            vectors = torch.cat(self._vectors(model, [source, *candidates]))
            src, candidate_vectors = vectors[:1].expand(len(candidates), -1), vectors[1:]
            return [
                model.estimate(
                    src, candidate_vector.expand(len(candidates), -1), candidate_vectors
                ).score.tolist()
                for candidate_vector in candidate_vectors
            ]

    def _vectors(self, model: Any, texts: Sequence[str]) -> list[Any]:
        embeddings = []
        for start in range(0, len(texts), self.batch_size):
            ready = model.encoder.prepare_sample(list(texts[start : start + self.batch_size]))
            ids, mask = (ready[name].to(model.device) for name in ("input_ids", "attention_mask"))
            embeddings.append(model.get_sentence_embedding(ids, mask))
        return embeddings


def serve(requests: IO[str], answers: IO[str], arguments: Sequence[str]) -> int:
    """Answer requests, as ``arguments`` (MODEL, BATCH_SIZE) say; return the status."""

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    model, batch_size = arguments
    try:
        loaded = Comet(model, int(batch_size))
        answer(loaded.about())
        for line in requests:
            request = json.loads(line)
            if "segments" in request:
                answer({"scores": loaded.scores(request["segments"])})
            else:
                answer({"matrix": loaded.matrix(request["candidates"], request["source"])})
    except (Exception, SystemExit) as error:  # a library may call sys.exit
        if os.environ.get("FAIRSEQ_EXT_TRACEBACK"):
            traceback.print_exc()
        kinds = (ImportError, importlib.metadata.PackageNotFoundError)
        message = f"{type(error).__name__}: {error}"
        answer({"error": message, "missing": isinstance(error, kinds)})
        return 1
    return 0


def end_with(parent: int) -> None:
    """Wait until the process ``parent`` has ended, then end this process. Run this in a thread.

    A request that is still computed is cut off.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> int:
    """Answer requests from standard input until they end; return the exit status."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Libraries' messages are written line by line, so that none is lost if this process is killed.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    requests = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  standard input
    try:
        return serve(requests, answers, sys.argv[1:])
    except (KeyboardInterrupt, BrokenPipeError):  # the parent interrupted it, or has ended
        return 130


if __name__ == "__main__":
    sys.exit(main())
