"""Translations of packed models against those of the checkpoints they are packed from."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import sacrebleu
from cells import Cells
from fairseq.dataclass.configs import GenerationConfig
from tqdm import tqdm

import fairseq_ext
from fairseq_ext.binary.packed import model_file, pack
from fairseq_ext.decoding.models import load

BEAM = 5
LEAST, MOST = 0.999, 0.05  # share of equal tokens, difference in BLEU
EXACT = "packed"  # all but bits as in the checkpoint; other kinds round numbers, and have no target
KINDS: dict[str, dict[str, Any]] = {
    EXACT: {},
    "packed, bf16": {"dtype": "bf16"},
    "packed, int8 tables": {"int8_embeddings": True},
}


def agreement(options: Namespace) -> Cells:
    """Beam search over the test set with each checkpoint and what is packed of it."""
    fairseq_ext.register()
    cells = Cells("Packed models: agreement with their checkpoints", unit="equal_tokens")
    cells.note(
        f"test set, beam {BEAM}, batches of at most {options.max_tokens:,} tokens; a token is "
        "equal if the same stands at its place in the checkpoint's translation of the sentence; "
        "BLEU by sacrebleu of words as in the data, subwords joined"
    )
    for path in options.checkpoints:
        of_model(cells, path, options)
    return cells


def of_model(cells: Cells, path: Path, options: Namespace) -> None:
    """All kinds of packed models of a checkpoint."""
    name = path.parent.name
    expected, references = translate(path, options)
    bleu = _bleu(expected, references)
    cells.note(f"{name}: {len(expected):,} sentences, BLEU of the checkpoint {bleu:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, how in KINDS.items():
            target = Path(folder) / "model.safetensors"
            model_file.write(pack.pack_file(path, options.data, **how), target)
            found, _ = translate(target, options)
            figure = {
                **{"what": name, "candidate": kind, "n": None, "sentences": len(found)},
                **{"bleu": _bleu(found, references), "bleu_of_checkpoint": bleu},
                **compare(expected, found),
            }
            cells.figures.append(figure)
            _find(cells, figure)


def compare(expected: list[str], found: list[str]) -> dict[str, float]:
    """Shares of equal tokens and of equal sentences; places that only one of both has count."""
    same = places = 0
    for one, other in zip(expected, found, strict=True):
        mine, theirs = one.split(), other.split()
        same += sum(a == b for a, b in zip(mine, theirs, strict=False))
        places += max(len(mine), len(theirs))
    sentences = sum(a == b for a, b in zip(expected, found, strict=True)) / len(expected)
    return {"equal_tokens": same / places, "equal_sentences": sentences}


def translate(path: Path, options: Namespace) -> tuple[list[str], list[str]]:
    """Subwords of the best translations, and of the references, in the order of the test set."""
    models, _, task = load(options.data, [path])
    settings = GenerationConfig(beam=BEAM)
    settings.engine = "fairseq"
    models[0].prepare_for_inference_(Namespace(generation=settings))
    generator = task.build_generator(models, settings)
    task.load_dataset("test")
    batches = task.get_batch_iterator(
        task.dataset("test"), max_tokens=options.max_tokens, max_positions=(1024, 1024)
    ).next_epoch_itr(shuffle=False)
    found, references = {}, {}
    words = task.target_dictionary
    for sample in tqdm(batches, desc=path.name, unit=" batches", disable=None):
        for number, target, best in zip(
            sample["id"].tolist(),
            sample["target"],
            task.inference_step(generator, models, sample),
            strict=True,
        ):
            found[number] = words.string(best[0]["tokens"])
            references[number] = words.string(target[target != words.pad()])
    return ([texts[n] for n in sorted(texts)] for texts in (found, references))


def _bleu(hypotheses: list[str], references: list[str]) -> float:
    joined = [[line.replace("@@ ", "") for line in lines] for lines in (hypotheses, references)]
    return sacrebleu.corpus_bleu(joined[0], [joined[1]], force=True).score


def _find(cells: Cells, figure: dict[str, Any]) -> None:
    apart = figure["bleu"] - figure["bleu_of_checkpoint"]
    kept = figure["equal_tokens"] >= LEAST and abs(apart) <= MOST
    target = f"; target {LEAST:.1%} and {MOST}: {'met' if kept else 'missed'}"
    target = target if figure["candidate"] == EXACT else ""
    cells.find(
        f"{figure['what']}, {figure['candidate']}: {figure['equal_tokens']:.3%} of tokens and "
        f"{figure['equal_sentences']:.1%} of sentences as by the checkpoint, BLEU "
        f"{figure['bleu']:.2f} ({apart:+.2f}{target})"
    )
