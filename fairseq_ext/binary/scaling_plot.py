"""Pictures of the scaling law, after Figures 2 and 3 of the BMT paper.

Both pictures show the models' losses on each dataset. The first shows these losses and the fitted
laws against the number of parameters. Each family of models has two lines: for models that scale
the encoder, and for models that scale the decoder. The second shows the losses against the losses
on the training data. A JSON file beside each picture has the numbers in the picture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_ext.binary.scaling_law import Group, Model
from fairseq_ext.evaluation.plots import PALETTE, new_figure, save_picture, show_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENCODER, DECODER, OTHER = "encoder-scaling", "decoder-scaling", "other"
_LINES = {ENCODER: "-", DECODER: "--"}
_MARKERS = {ENCODER: "o", DECODER: "s", OTHER: "^"}
_ACROSS = 4  # panels in a row
_UNNAMED = "models"


def arms(models: Sequence[Model], base: tuple[int, int]) -> dict[str, list[Model]]:
    """Sort models by what they scale: ``{arm: models}``, the smallest model first.

    Models in the arm ``encoder-scaling`` have the baseline's decoder, models in the arm
    ``decoder-scaling`` have its encoder, and the baseline itself is in both. All other models are
    in the arm ``other``. An arm without models is left out. ``base`` is (N̄e, N̄d), the
    numbers of parameters of the baseline's encoder and decoder.
    """
    models = sorted(models, key=lambda model: model.parameters)
    encoders = [model for model in models if model.decoder_parameters == base[1]]
    decoders = [model for model in models if model.encoder_parameters == base[0]]
    others = [model for model in models if model not in encoders + decoders]
    arm_models = {ENCODER: encoders, DECODER: decoders, OTHER: others}
    return {arm: members for arm, members in arm_models.items() if members}


def curve(group: Group, arm: str, base: tuple[int, int], points: int = 32) -> list[list[float]]:
    """Return ``points`` pairs ``[parameters, loss]`` of a group's law along one of its arms.

    Parameters are those of encoder and decoder together, from the arm's smallest model to its
    largest. ``arm`` and ``base`` are as in :func:`arms`.
    """
    members = arms(group.models, base)[arm]
    fixed = np.full(points, float(base[1] if arm == ENCODER else base[0]))
    sizes = [m.encoder_parameters if arm == ENCODER else m.decoder_parameters for m in members]
    scaled = np.geomspace(min(sizes), max(sizes), points, dtype=np.float64)
    encoder, decoder = (scaled, fixed) if arm == ENCODER else (fixed, scaled)
    losses = group.fit.law(encoder, decoder)
    return np.stack([encoder + decoder, losses], axis=1).tolist()


def plot_scaling(groups: Sequence[Group], base: tuple[int, int], output: str | Path) -> list[Path]:
    """Plot losses and fitted laws against the model size, in a panel for each dataset (Figure 2).

    ``base`` is as in :func:`arms`. Return the paths of the picture and of its numbers (JSON).
    """
    with _panels(groups) as (figure, panels):
        colours = _colours(groups)
        for dataset, axes in panels.items():
            for group in (group for group in groups if group.dataset == dataset):
                _draw_group(axes, group, base, colours[group.family])
            axes.set(title=dataset, xscale="log", ylabel="loss (per token)")
            axes.set_xlabel("parameters without embeddings (log scale)")
            axes.grid(True, which="both")
            _plain_counts(axes)
            show_names(axes.legend(fontsize=7.5))
        return save_picture(figure, output, {"groups": [_data(group, base) for group in groups]})


def plot_training(groups: Sequence[Group], output: str | Path) -> list[Path]:
    """Plot the models' losses on each dataset against their training losses (Figure 3).

    Each family with at least three models gets a least-squares line. Return the paths of the
    picture and of its numbers (JSON); if no model has a training loss, plot nothing, return [].
    """
    all_pairs = [
        (group, [(m.train_loss, m.loss) for m in group.models if m.train_loss is not None])
        for group in groups
    ]
    losses = [(group, pairs) for group, pairs in all_pairs if pairs]
    if not losses:
        return []
    with _panels([group for group, _ in losses]) as (figure, panels):
        colours = _colours(groups)
        for group, pairs in losses:
            axes, points = panels[group.dataset], np.array(pairs)
            colour, label = colours[group.family], group.family or _UNNAMED
            axes.plot(*points.T, "o", ms=4.5, color=colour, alpha=0.8, label=label)
            if len(points) > 2:
                ends = np.array([points[:, 0].min(), points[:, 0].max()])
                slope, offset = np.polyfit(points[:, 0], points[:, 1], 1)
                axes.plot(ends, slope * ends + offset, color=colour, lw=1.4)
        for dataset, axes in panels.items():
            axes.set(title=dataset, xlabel="training loss (per token)", ylabel="loss (per token)")
            axes.grid(True)
            show_names(axes.legend(fontsize=8.5))
        data = [
            {"dataset": group.dataset, "family": group.family, "train_and_test": pairs}
            for group, pairs in losses
        ]
        return save_picture(figure, output, {"groups": data})


@contextlib.contextmanager
def _panels(groups: Sequence[Group]) -> Iterator[tuple[Figure, dict[str, Axes]]]:
    """Open a figure with a panel for each dataset; yield the figure and ``{dataset: panel}``."""
    datasets = list(dict.fromkeys(group.dataset for group in groups))
    across = min(_ACROSS, len(datasets))
    down = -(-len(datasets) // across)
    with new_figure(5.0 * across, 4.0 * down) as figure:
        all_axes = figure.subplots(down, across, squeeze=False).ravel()
        for unused in all_axes[len(datasets) :]:
            unused.set_visible(False)
        yield figure, dict(zip(datasets, all_axes, strict=False))


def _colours(groups: Sequence[Group]) -> dict[str, str]:
    families = list(dict.fromkeys(group.family for group in groups))
    return {family: PALETTE[i % len(PALETTE)] for i, family in enumerate(families)}


def _draw_group(axes: Axes, group: Group, base: tuple[int, int], colour: str) -> None:
    """Draw a group's models as markers and its law as lines, with the exponents in the legend."""
    law = group.fit.law
    for arm, members in arms(group.models, base).items():
        xs, ys = [m.parameters for m in members], [m.loss for m in members]
        filled = colour if arm == ENCODER else "white"
        axes.plot(xs, ys, _MARKERS[arm], ms=4.5, color=colour, markerfacecolor=filled)
        if arm in _LINES:
            exponent = f"p_e = {law.p_e:.2f}" if arm == ENCODER else f"p_d = {law.p_d:.2f}"
            name = f"{group.family}, {arm}" if group.family else arm
            line = np.array(curve(group, arm, base))
            label = f"{name}: {exponent}"
            axes.plot(*line.T, _LINES[arm], color=colour, lw=1.4, label=label)


def _plain_counts(axes: Axes) -> None:
    """Label the x axis at 1, 2 and 5 times each power of ten; 20,000,000 is written 20 M."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _data(group: Group, base: tuple[int, int]) -> dict[str, Any]:
    arm_models = arms(group.models, base)
    return {
        "dataset": group.dataset,
        "family": group.family,
        "law": asdict(group.fit.law),
        "r_squared": group.fit.r_squared,
        "models": {
            arm: [[m.name, m.parameters, m.loss] for m in members]
            for arm, members in arm_models.items()
        },
        "curves": {arm: curve(group, arm, base) for arm in arm_models if arm in _LINES},
    }
