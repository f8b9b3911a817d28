#!/usr/bin/env python
"""Measure sizes and losses of trained models for ``fairseq-ext scaling-fit``.

    python recipes/bmt/scaling_losses.py float=float.pt binary=binary.pt … \\
        --data bin --split valid=valid --split sample=test1 --train sample -o table.json

Losses are negative log-likelihoods of the references in nats per token; ``</s>`` is a token. They
are computed anew, in float64: the losses in fairseq's logs are rounded to 0.001 bits, and models of
a scaling law may differ by little more. Parameters are counted without embeddings, positions and
output projection.
"""

import argparse
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.tasks import FairseqTask
from torch import nn
from tqdm import tqdm

from fairseq_ext import register
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, FairseqExtError

EMBEDDING = re.compile(r"\b(embed_tokens|embed_positions|output_projection)\b")


def size(part: nn.Module) -> int:
    """Count the parameters of an encoder or decoder without embeddings."""
    return sum(p.numel() for name, p in part.named_parameters() if not EMBEDDING.search(name))


@torch.no_grad()
def loss(
    model: FairseqEncoderDecoderModel, task: FairseqTask, split: str, max_tokens: int
) -> float:
    """Compute the negative log-likelihood of a split's targets in nats per token.

    ``model`` is in eval mode, and ``task`` is the task of its training. The longest sentence of the
    split must fit the model. A batch has at most ``max_tokens`` tokens.
    """
    task.load_dataset(split)
    device = next(model.parameters()).device
    batches = task.get_batch_iterator(
        task.dataset(split),
        max_tokens=max_tokens,
        max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
    ).next_epoch_itr(shuffle=False)
    total, tokens = 0.0, 0
    for batch in tqdm(batches, desc=split, unit="batch", leave=False, disable=None):
        batch = utils.move_to_cuda(batch) if device.type == "cuda" else batch
        target = batch["target"]
        logs = model.get_normalized_probs(model(**batch["net_input"]), log_probs=True)
        target_logs = logs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        real = target.ne(task.target_dictionary.pad())
        total -= float(target_logs[real].double().sum())
        tokens += int(real.sum())
    return total / tokens


def measure(
    checkpoint: Path, data: Path, splits: dict[str, str], max_tokens: int
) -> dict[str, Any]:
    """Return a model's sizes and losses; ``splits`` maps names of the table to fairseq's names."""
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data)}
    )
    model.eval()
    if torch.cuda.is_available():
        model.cuda()
    return {
        "name": f"{cfg.model.encoder_layers}L{cfg.model.decoder_layers}L",
        "encoder_parameters": size(model.encoder),
        "decoder_parameters": size(model.decoder),
        "losses": {name: loss(model, task, split, max_tokens) for name, split in splits.items()},
    }


def pair(text: str) -> tuple[str, str]:
    """Split ``NAME=VALUE``; argparse reports any other text."""
    name, _, value = text.partition("=")
    if not (name and value):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, but is `{text}`")
    return name, value


def table(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all models; return a row for each model on each split except the training split.

    ``--train`` names the training split, whose loss is ``train_loss`` in all rows of a model (None
    without ``--train``). Rows are sorted by dataset, family and size.
    """
    splits = dict(args.split)
    if args.train is not None and args.train not in splits:
        raise ConfigError(f"`--train` must be one of the splits, but is `{args.train}` instead.")
    table_rows = []
    for family, path in tqdm(args.models, unit="model", disable=None):
        figures = measure(Path(path), args.data, splits, args.max_tokens)
        losses = figures.pop("losses")
        train_loss = losses.pop(args.train, None)
        for name, value in losses.items():
            row = {"family": family, "dataset": name, "loss": value, "train_loss": train_loss}
            table_rows.append({**figures, **row})
    order = ("dataset", "family", "encoder_parameters", "decoder_parameters")
    return sorted(table_rows, key=lambda row: [row[name] for name in order])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "models",
        nargs="+",
        type=pair,
        metavar="FAMILY=CHECKPOINT",
        help="a model, and a name such as `float` for all models that follow the same law",
    )
    parser.add_argument("--data", type=Path, required=True, help="binarized data")
    parser.add_argument(
        "--split",
        action="append",
        required=True,
        type=pair,
        metavar="NAME=SPLIT",
        help="a data set, by the name in the table and fairseq's name",
    )
    parser.add_argument("--train", metavar="NAME", help="the split that is training data")
    parser.add_argument("--max-tokens", type=int, default=4000, help="tokens in a batch (4000)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="TABLE.json")
    args = parser.parse_args()
    register()
    for name in ("fairseq", "fairseq_ext"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        table_rows = table(args)
        with files.atomic_write(args.output) as file:
            file.write(json.dumps(table_rows, indent=1) + "\n")
    except FairseqExtError as error:
        sys.exit(f"scaling_losses: error: {error}")


if __name__ == "__main__":
    main()
