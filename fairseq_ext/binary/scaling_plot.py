"""Pictures of the scaling law, after Figures 2 and 3 of the BMT paper.

Both pictures show the models' losses on each dataset. The first shows these losses and the fitted
laws against the number of parameters. Each family of models has two lines: for models that scale
the encoder, and for models that scale the decoder. The second shows the losses against the losses
on the training data. A JSON file beside each picture has the numbers in the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_ext.binary.scaling_law import Fit, Model
from fairseq_ext.evaluation.plots import PALETTE, legend_label, new_figure, save_picture, show_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENCODER, DECODER, OTHER = "encoder-scaling", "decoder-scaling", "other"
_LINES = {ENCODER: "-", DECODER: "--"}
_MARKERS = {ENCODER: "o", DECODER: "s", OTHER: "^"}
_ACROSS = 4  # panels in a row


def arms(models: Sequence[Model], base: tuple[float, float]) -> dict[str, list[Model]]:
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


def curve(fit: Fit, arm: str, base: tuple[float, float], points: int = 32) -> list[list[float]]:
    """Return ``points`` pairs ``[parameters, loss]`` of a law along one of its arms.

    Parameters are those of encoder and decoder together, from the arm's smallest model to its
    largest. ``arm`` and ``base`` are as in :func:`arms`.
    """
    members = arms(fit.models, base)[arm]
    fixed = np.full(points, float(base[1] if arm == ENCODER else base[0]))
    sizes = [m.encoder_parameters if arm == ENCODER else m.decoder_parameters for m in members]
    scaled = np.geomspace(min(sizes), max(sizes), points, dtype=np.float64)
    encoder, decoder = (scaled, fixed) if arm == ENCODER else (fixed, scaled)
    return np.stack([encoder + decoder, fit.law(encoder, decoder)], axis=1).tolist()


def plot_scaling(fits: Sequence[Fit], base: tuple[float, float], output: str | Path) -> list[Path]:
    """Plot losses and fitted laws against the model size, in a panel for each dataset (Figure 2).

    ``base`` is as in :func:`arms`. Return the paths of the picture and of its numbers (JSON).
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    def draw(axes: Axes, fit: Fit, colour: str) -> None:
        """Draw models as markers and the law as lines, with the exponents in the legend."""
        for arm, members in arms(fit.models, base).items():
            xs, ys = [m.parameters for m in members], [m.loss for m in members]
            filled = colour if arm == ENCODER else "white"
            axes.plot(xs, ys, _MARKERS[arm], ms=4.5, color=colour, markerfacecolor=filled)
            if arm in _LINES:
                law, name = fit.law, f"{fit.family}, {arm}" if fit.family else arm
                exponent = f"p_e = {law.p_e:.2f}" if arm == ENCODER else f"p_d = {law.p_d:.2f}"
                line = np.array(curve(fit, arm, base))
                label = legend_label(f"{name}: {exponent}")
                axes.plot(*line.T, _LINES[arm], color=colour, lw=1.4, label=label)
        axes.set(xscale="log", xlabel="parameters without embeddings (log scale)")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(EngFormatter())  # 20,000,000 is written 20 M
        axes.xaxis.set_minor_formatter(NullFormatter())

    data = []
    for fit in fits:
        points = {
            arm: [[model.name, model.parameters, model.loss] for model in members]
            for arm, members in arms(fit.models, base).items()
        }
        group: dict[str, Any] = {"dataset": fit.dataset, "family": fit.family}
        group |= {"law": asdict(fit.law), "r_squared": fit.r_squared, "models": points}
        group["curves"] = {arm: curve(fit, arm, base) for arm in points if arm in _LINES}
        data.append(group)
    return _plot(fits, draw, output, data)


def plot_training(fits: Sequence[Fit], output: str | Path) -> list[Path]:
    """Plot the models' losses on each dataset against their training losses (Figure 3).

    Each family with at least three models gets a least-squares line. Return the paths of the
    picture and of its numbers (JSON); if no model has a training loss, plot nothing, return [].
    """

    def losses(fit: Fit) -> list[tuple[float, float]]:
        return [(m.train_loss, m.loss) for m in fit.models if m.train_loss is not None]

    def draw(axes: Axes, fit: Fit, colour: str) -> None:
        points = np.array(losses(fit))
        label = legend_label(fit.family or "models")
        axes.plot(*points.T, "o", ms=4.5, color=colour, alpha=0.8, label=label)
        if len(points) > 2:
            ends = np.array([points[:, 0].min(), points[:, 0].max()])
            slope, offset = np.polyfit(points[:, 0], points[:, 1], 1)
            axes.plot(ends, slope * ends + offset, color=colour, lw=1.4)
        axes.set(xlabel="training loss (per token)")

    trained = [fit for fit in fits if losses(fit)]
    data = [
        {"dataset": fit.dataset, "family": fit.family, "train_and_test": losses(fit)}
        for fit in trained
    ]
    return _plot(trained, draw, output, data) if trained else []


def _plot(
    fits: Sequence[Fit],
    draw: Callable[[Axes, Fit, str], None],
    output: str | Path,
    data: list[dict[str, Any]],
) -> list[Path]:
    """Draw fits in a panel for each dataset, in a colour for each family; save figure and data.

    Return the paths of both.
    """
    datasets = list(dict.fromkeys(fit.dataset for fit in fits))
    colours = dict(zip(dict.fromkeys(fit.family for fit in fits), cycle(PALETTE), strict=False))
    across = min(_ACROSS, len(datasets))
    down = -(-len(datasets) // across)
    with new_figure(5.0 * across, 4.0 * down) as figure:
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for unused in panels[len(datasets) :]:
            unused.set_visible(False)
        for dataset, axes in zip(datasets, panels, strict=False):
            for fit in (fit for fit in fits if fit.dataset == dataset):
                draw(axes, fit, colours[fit.family])
            axes.set(title=dataset, ylabel="loss (per token)")
            axes.grid(True, which="both")
            show_names(axes.legend(fontsize=7.5))
        return save_picture(figure, output, {"groups": data})
