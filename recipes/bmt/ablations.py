#!/usr/bin/env python
"""Make BMT's Figures 5a and 5b and Table 1 from the models of ``ablations.sh`` and ``table1.sh``.

    python recipes/bmt/ablations.py scale --dir runs/ablations-…     # losses over s
    python recipes/bmt/ablations.py output --dir runs/ablations-…    # learning curves
    python recipes/bmt/ablations.py table1 --dir runs/table1-…       # learning curves

The first argument, FIGURE, is ``scale`` (Figure 5a, over the scaling factor s), ``output`` (Figure
5b) or ``table1`` (Table 1). The picture ``FIGURE.png``, its data ``FIGURE.json`` and the table
``FIGURE.md`` are written to ``--dir``. Losses are the references' negative log-likelihood in nats
per token, as in the paper. The training loss is the mean over the last tenth of the updates.
"""

import argparse
import json
import logging
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from fairseq_ext.binary.switches import PRESETS
from fairseq_ext.evaluation import plots, training_log
from fairseq_ext.evaluation.tables import aligned, markdown
from fairseq_ext.evaluation.training_log import Curves
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import DataError, FairseqExtError

OUTPUTS = ("float", "plain", "scale", "layer", "shortcut")  # in the order of the picture
LAST = 0.9  # the training loss is averaged over the updates after this share of all updates


@dataclass(frozen=True)
class Model:
    """The losses (nats per token) and the test set's BLEU of a finished model."""

    name: str  # `float`, a value of s, a variant of the output projection, or a preset
    updates: int
    train_loss: float
    valid_loss: float
    bleu: float


def read_model(name: str, folder: Path) -> Model:
    """Read losses and BLEU from a model's folder, which ``compare.sh`` wrote."""
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
    """Return ``{model: folder}`` for the finished models of a figure, in the order of its table.

    ``figure`` is ``scale``, ``output`` or ``table1``. Raise DataError if no model but the float one
    is finished.
    """
    prefix = "" if figure == "table1" else f"{figure}-"
    folders = {
        path.parent.name.removeprefix(prefix): path.parent
        for path in folder.glob(f"models/{prefix}*/scores.json")
    }
    order = {"output": OUTPUTS, "table1": tuple(PRESETS)}.get(figure)
    if order is None:
        order = ("float", *sorted(filter(str.isdecimal, folders), key=int))
    models = {name: folders[name] for name in order if name in folders}
    if not models.keys() - {"float"}:
        raise DataError(f"`{folder}` holds no finished model of `{figure}`; run its recipe.")
    return models


def plot_scales(models: list[Model], output: Path) -> None:
    """Plot final losses over the scaling factor s; horizontal lines mark the float model's."""
    swept = [model for model in models if model.name != "float"]
    places = [int(model.name) for model in swept]
    with plots.new_figure(6.4, 4.2) as figure:
        axes = figure.subplots()
        for colour, kind in zip(plots.PALETTE, ("train", "valid"), strict=False):
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
        plots.save_picture(figure, output, {"models": [asdict(model) for model in models]})


def plot_outputs(folders: dict[str, Path], models: list[Model], output: Path) -> None:
    """Plot the models' learning curves, and add losses and BLEU to the JSON beside the picture."""
    runs: dict[str, Curves] = {
        name: training_log.read_log(folder / "train.log") for name, folder in folders.items()
    }
    table = plots.plot_curves(runs, output)[-1]
    data = json.loads(table.read_text(encoding="utf-8"))
    with files.atomic_write(table) as file:
        file.write(json.dumps({"models": [asdict(model) for model in models], **data}) + "\n")


def rows(models: list[Model], heading: str) -> list[tuple[str, ...]]:
    """Return a table with a heading and a row for each model; ``heading`` is its top left cell."""
    table = [(heading, "updates", "training loss", "validation loss", "BLEU")]
    for model in models:
        losses = (f"{model.train_loss:.3f}", f"{model.valid_loss:.3f}")
        table.append((model.name, f"{model.updates:,}", *losses, f"{model.bleu:.2f}"))
    return table


def with_switches(table: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Add two columns to Table 1: the parts with 1-bit weights, and with 1-bit activations."""
    heading, *presets = table
    kinds = ("weights", "activations")
    switches = {
        name: [" ".join(sorted(getattr(PRESETS[name], kind))) for kind in kinds]
        for name, *_ in presets
    }
    return [
        (heading[0], *(f"1-bit {kind}" for kind in kinds), *heading[1:]),
        *((name, *switches[name], *cells) for name, *cells in presets),
    ]


def report(folder: Path, figure: str) -> str:
    """Write the picture and table of ``figure`` (:func:`finished`); return the table as text."""
    folders = finished(folder, figure)
    models = [read_model(name, path) for name, path in folders.items()]
    output = folder / f"{figure}.png"
    if figure == "scale":
        plot_scales(models, output)
    else:
        plot_outputs(folders, models, output)
    headings = {"scale": "s", "output": "output projection", "table1": "row"}
    table = rows(models, headings[figure])
    if figure == "table1":
        table = with_switches(table)
    with files.atomic_write(folder / f"{figure}.md") as file:
        file.write(markdown(table) + "\n")
    return aligned(table)


def main() -> None:
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq's import chooses DEBUG
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("figure", choices=("scale", "output", "table1"))
    parser.add_argument("--dir", type=Path, required=True, help="the recipe's output folder")
    args = parser.parse_args()
    try:
        print(report(args.dir, args.figure))
    except (OSError, FairseqExtError) as error:
        sys.exit(f"ablations: error: {error}")


if __name__ == "__main__":
    main()
