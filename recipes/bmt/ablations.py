#!/usr/bin/env python
"""Tables and pictures of ``ablations.sh``: Figures 5a and 5b of the BMT paper.

    python recipes/bmt/ablations.py scale --dir runs/ablations-…     # losses over s
    python recipes/bmt/ablations.py output --dir runs/ablations-…    # learning curves

Writes ``FIGURE.png``, ``.svg`` and ``.json`` (the data) and ``FIGURE.md`` there. Losses are the
references' negative log-likelihood in nats per token, as in the paper; that of the training is the
mean over the last tenth of the updates.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from fairseq_ext.evaluation import plot_styles, plots, training_log
from fairseq_ext.evaluation.tables import aligned, markdown
from fairseq_ext.evaluation.training_log import Curves
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import DataError, FairseqExtError

OUTPUTS = ("float", "plain", "scale", "layer", "shortcut")  # in the order of the picture
LAST = 0.9  # share of the updates before those whose training loss is averaged


@dataclass(frozen=True)
class Model:
    """Figures of one finished model.

    Attributes:
        name: ``float``, a value of s, or a variant of the output.
        updates: how many.
        train_loss, valid_loss: nats per token.
        bleu: sacrebleu's, of the test set.
    """

    name: str
    updates: int
    train_loss: float
    valid_loss: float
    bleu: float


def read_model(name: str, folder: Path) -> Model:
    """Read the figures in a model's folder, which ``compare.sh`` wrote.

    Raises:
        DataError: a log without the losses.
    """
    curves = training_log.read_log(folder / "train.log")
    train, valid = curves.train.get("nll_loss", {}), curves.valid.get("nll_loss", {})
    if not (train and valid):
        raise DataError(f"`{folder}` has a train.log without `nll_loss`; train it again.")
    updates = max(valid)
    late = [loss for update, loss in train.items() if update > LAST * max(train)]
    (bleu,) = (
        score["value"]
        for score in json.loads((folder / "scores.json").read_text(encoding="utf-8"))["scores"]
        if score["name"] == "BLEU"
    )
    nats = math.log(2)
    return Model(name, updates, sum(late) / len(late) * nats, valid[updates] * nats, bleu)


def finished(folder: Path, figure: str) -> dict[str, Path]:
    """Return the folders of a figure's models by name, sorted as in the table.

    Raises:
        DataError: there is none, or none but the float model.
    """
    folders = {
        path.parent.name.removeprefix(f"{figure}-"): path.parent
        for path in folder.glob(f"models/{figure}-*/scores.json")
    }
    models = {
        name: path for name, path in folders.items() if name in OUTPUTS or name.isdecimal()
    }  # and no folder that was moved out of the way
    if not models.keys() - {"float"}:
        raise DataError(f"`{folder}` holds no finished model of `{figure}`; run ablations.sh.")
    return {name: models[name] for name in sorted(models, key=_place)}


def _place(name: str) -> tuple[int, int]:
    """Return a model's sort key in the table: the float model first, then by s."""
    return (len(OUTPUTS), int(name)) if name.isdecimal() else (OUTPUTS.index(name), 0)


def plot_scales(models: list[Model], output: Path) -> list[Path]:
    """Plot final losses over s, the float model's as lines; returns the files written."""
    import matplotlib
    from matplotlib.figure import Figure

    swept = [model for model in models if model.name != "float"]
    places = [int(model.name) for model in swept]
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        for colour, kind in zip(plot_styles.PALETTE, ("train", "valid"), strict=False):
            label = {"train": "training", "valid": "validation"}[kind]
            losses = [getattr(model, f"{kind}_loss") for model in swept]
            axes.plot(places, losses, marker="o", ms=4, lw=1.8, color=colour, label=label)
            for model in models:
                if model.name == "float":
                    line = {"ls": "--", "lw": 1.2, "color": colour, "label": f"{label}, float"}
                    axes.axhline(getattr(model, f"{kind}_loss"), **line)
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [str(place) for place in places])
        axes.set(xlabel="scaling factor s (log scale)", ylabel="final loss (nats per token)")
        axes.set_title("Feed-forward network binarized, products divided by s")
        axes.grid(True)
        axes.legend(fontsize=8.5)
        return plots.save_picture(figure, output, {"models": [asdict(model) for model in models]})


def plot_outputs(folders: dict[str, Path], models: list[Model], output: Path) -> list[Path]:
    """Plot learning curves of the variants; returns the files written."""
    runs: dict[str, Curves] = {
        name: training_log.read_log(folder / "train.log") for name, folder in folders.items()
    }
    written = plots.plot_curves(runs, output)
    data = json.loads(written[-1].read_text(encoding="utf-8"))
    with files.atomic_write(written[-1]) as file:
        file.write(json.dumps({"models": [asdict(model) for model in models], **data}) + "\n")
    return written


def rows(models: list[Model], heading: str) -> list[tuple[str, ...]]:
    """Return the rows of the table, its heading first."""
    return [
        (heading, "updates", "training loss", "validation loss", "BLEU"),
        *(
            (
                *(model.name, f"{model.updates:,}"),
                *(f"{model.train_loss:.3f}", f"{model.valid_loss:.3f}", f"{model.bleu:.2f}"),
            )
            for model in models
        ),
    ]


def report(folder: Path, figure: str) -> str:
    """Write the picture and the table of a figure; returns the table for the terminal."""
    folders = finished(folder, figure)
    models = [read_model(name, path) for name, path in folders.items()]
    output = folder / f"{figure}.png"
    if figure == "scale":
        plot_scales(models, output)
    else:
        plot_outputs(folders, models, output)
    table = rows(models, "s" if figure == "scale" else "output projection")
    with files.atomic_write(folder / f"{figure}.md") as file:
        file.write(markdown(table) + "\n")
    return aligned(table)


def main() -> None:
    """Run the command; a user's error ends it with one line and status 1."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq's import chooses DEBUG
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("figure", choices=("scale", "output"), help="5a or 5b")
    parser.add_argument("--dir", type=Path, required=True, help="the folder of ablations.sh")
    args = parser.parse_args()
    try:
        print(report(args.dir, args.figure))
    except (OSError, FairseqExtError) as error:
        sys.exit(f"ablations: error: {error}")


if __name__ == "__main__":
    main()
