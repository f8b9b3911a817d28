"""The scaling law of translation models, fitted to the losses of models of many sizes.

Section 4.2 of the BMT paper, after Ghorbani et al. 2021 (arXiv 2109.07740)::

    L(Ne, Nd) = α (N̄e / Ne)^pe (N̄d / Nd)^pd + L∞

``Ne`` and ``Nd`` are the numbers of parameters of encoder and decoder, without embeddings. ``N̄e``
and ``N̄d`` are these numbers for the baseline (6 + 6 layers in the paper). ``L`` is the loss per
token, ``L∞`` its limit for large models. A model *scales the encoder* if its decoder has the
baseline's size, and *scales the decoder* if its encoder has the baseline's size. Letters below:
``n`` models, and ``θ``, the vector of the law's constants, ``(log α, pe, pd, L∞)``.

Over the range of sizes that can be trained, a larger α with a smaller L∞ predicts nearly the same
losses (the estimates have a correlation of about -0.999 for the paper's sizes). So each constant
has two confidence intervals: a Jacobian interval, from the curvature at the optimum, and a
bootstrap interval, from refits to resampled residuals.

A table of losses is a ``.json`` list of objects, or ``.csv`` or ``.tsv`` text with a heading. A row
has a model's loss on one dataset; columns in brackets are optional::

    name   encoder_parameters  decoder_parameters  loss   [family]  [dataset]  [train_loss]

A family is a kind of model, such as float or binary. A law is fitted for each family on each
dataset.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import OptimizeResult, least_squares
from tqdm import tqdm

from fairseq_ext.evaluation.tables import aligned
from fairseq_ext.text.reading import table_rows
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.json_files import read_json

Array = NDArray[np.float64]
Interval = tuple[float, float]  # the ends of a 95 % confidence interval

COLUMNS = ("name", "encoder_parameters", "decoder_parameters", "loss")
NUMBERS = {*COLUMNS[1:], "train_loss"}
_LEAST, _MOST = 1e-9, 1e18  # a loss or size outside would overflow the fit
PARAMETERS = ("alpha", "p_e", "p_d", "L_inf")
LEVEL = 0.95  # confidence of every interval
FEWEST_SIZES = 5  # one more than the law has constants, or the fit would be perfect
STEEPEST = 2.0  # bound on pe and pd
_STARTS = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.96, 0.99)  # L∞ as a fraction of the least loss
_BELOW = 1 - 1e-9  # L∞ stays under the least loss
_TOLERANCE = 1e-6  # for the rank of the scaled Jacobian, and for estimates at a bound


@dataclass(frozen=True)
class Law:
    """A scaling law with its constants: ``alpha (N̄e / Ne)^p_e (N̄d / Nd)^p_d + L_inf``.

    ``Ne`` and ``Nd`` are the numbers of parameters of encoder and decoder. ``base`` has those of
    the baseline, ``N̄e`` and ``N̄d``. ``alpha`` is the part of the baseline's loss that larger
    models reduce, ``L_inf`` the rest.
    """

    alpha: float
    p_e: float
    p_d: float
    L_inf: float
    base: tuple[float, float]  # (N̄e, N̄d), parameters of the baseline without embeddings

    def __call__(self, encoder: Array | float, decoder: Array | float) -> Array:
        """Predict the loss from numbers of parameters of encoder and decoder, of equal shape."""
        scaled = (self.base[0] / encoder) ** self.p_e * (self.base[1] / decoder) ** self.p_d
        return np.asarray(self.alpha * scaled + self.L_inf)


@dataclass(frozen=True)
class Model:
    """The size of a trained model, without embeddings, and its loss per token on a dataset.

    Models of the same ``family``, such as ``float``, share a law.
    """

    name: str
    encoder_parameters: float
    decoder_parameters: float
    loss: float
    family: str = ""
    dataset: str = ""
    train_loss: float | None = None

    @property
    def parameters(self) -> float:
        return self.encoder_parameters + self.decoder_parameters


@dataclass(frozen=True)
class Fit:
    """A law fitted to the models of a family on a dataset, with measures of its reliability.

    If the search has stopped at a bound (``at_bound``), all intervals are too narrow: the true
    value may be beyond the bound.
    """

    family: str
    dataset: str
    models: tuple[Model, ...]
    law: Law  # the least-squares estimate
    r_squared: float  # share of the losses' variance that the law explains
    residual_sd: float  # standard deviation of the residuals, for n - 4 degrees of freedom
    jacobian: dict[str, Interval]  # by the names of PARAMETERS; from curvature (Student's t, n - 4)
    bootstrap: dict[str, Interval]  # by the names of PARAMETERS; from percentiles of the refits
    at_bound: tuple[str, ...]  # parameters whose estimate is a bound of the search


def fit_laws(
    models: Sequence[Model], base: tuple[float, float], *, resamples: int = 500, seed: int = 1
) -> list[Fit]:
    """Fit a law to the models of each family on each dataset, by :func:`fit_law`.

    ``base``, the numbers of parameters of the baseline's encoder and decoder, is the same for all
    laws, so that their α can be compared.
    """
    groups: dict[tuple[str, str], list[Model]] = {}
    for model in models:
        groups.setdefault((model.dataset, model.family), []).append(model)
    return [fit_law(group, base, resamples=resamples, seed=seed) for group in groups.values()]


def fit_law(
    models: Sequence[Model], base: tuple[float, float], *, resamples: int = 500, seed: int = 1
) -> Fit:
    """Fit a scaling law to the losses of models by least squares, from several starting points.

    The ``n`` models are of one family and one dataset; a model that is listed twice counts twice.
    ``base`` is (N̄e, N̄d), the sizes of the baseline. ``resamples`` is the number of refits for the
    bootstrap intervals. Raise DataError if there are fewer than :data:`FEWEST_SIZES` different
    sizes, or if several laws fit the losses equally well.
    """
    family, dataset = models[0].family, models[0].dataset
    label = _label(family, dataset)
    label = f"`{label}`" if label else "the table"
    x = np.log([base[0] / model.encoder_parameters for model in models])
    y = np.log([base[1] / model.decoder_parameters for model in models])
    target = np.array([model.loss for model in models])
    sizes = len(set(zip(x.tolist(), y.tolist(), strict=True)))
    if sizes < FEWEST_SIZES:
        raise DataError(
            f"The law has four constants and needs at least {FEWEST_SIZES} different sizes, but "
            f"{label} has {sizes}."
        )
    searches = [_search(x, y, target, start) for start in _starts(x, y, target)]
    theta = min(searches, key=attrgetter("cost")).x
    jacobian = _jacobian(theta, x, y)
    lengths = np.linalg.norm(jacobian, axis=0)
    scaled = jacobian / np.where(lengths > 0, lengths, 1)
    if np.linalg.matrix_rank(scaled, tol=_TOLERANCE) < len(PARAMETERS):
        raise DataError(
            f"The losses of {label} do not determine the four constants of the law. They must fall "
            "with size like a power law, and there must be models that scale the encoder alone "
            "and models that scale the decoder alone."
        )
    freedom = len(target) - len(PARAMETERS)
    residuals = target - _predict(theta, x, y)
    squares = float(residuals @ residuals)
    deviation = float(np.sqrt(squares / freedom))
    inverse = np.linalg.pinv(jacobian)  # (JᵀJ)⁻¹ = J⁺ J⁺ᵀ, without squaring the condition
    half = stats.t.ppf((1 + LEVEL) / 2, freedom) * deviation * np.linalg.norm(inverse, axis=1)
    refits = _bootstrap(theta, x, y, residuals, resamples, seed)
    ends = np.quantile(refits, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    lower, upper = _bounds(target)
    reached = (theta - lower < _TOLERANCE) | (upper - theta < _TOLERANCE)
    alpha, p_e, p_d, limit = theta.tolist()
    return Fit(
        family=family,
        dataset=dataset,
        models=tuple(models),
        law=Law(float(np.exp(alpha)), p_e, p_d, limit, base),
        r_squared=1 - squares / float(np.sum((target - target.mean()) ** 2)),
        residual_sd=deviation,
        jacobian=_named(theta - half, theta + half),
        bootstrap=_named(*ends),
        at_bound=tuple(name for name, hit in zip(PARAMETERS, reached, strict=True) if hit),
    )


def _label(family: str, dataset: str) -> str:
    return ", ".join(part for part in (dataset, family) if part)


def _predict(theta: Array, x: Array, y: Array) -> Array:
    return np.exp(theta[0] + theta[1] * x + theta[2] * y) + theta[3]


def _jacobian(theta: Array, x: Array, y: Array) -> Array:
    """Return the derivatives of the predicted losses with respect to θ, ``[n, 4]``.

    ``theta`` is θ; ``x`` and ``y`` are ``log(N̄e / Ne)`` and ``log(N̄d / Nd)``, ``[n]`` each.
    """
    reducible = np.exp(theta[0] + theta[1] * x + theta[2] * y)
    return np.stack([reducible, reducible * x, reducible * y, np.ones_like(x)], axis=1)


def _starts(x: Array, y: Array, losses: Array) -> list[Array]:
    """Return starting points θ of the search, one for each of several values of L∞.

    Linear regression gives the other constants: for a fixed L∞, ``log(L - L∞)`` is linear in x, y.
    ``x`` and ``y`` are as in :func:`_jacobian`; ``losses`` has the loss L of each model.
    """
    columns = np.stack([np.ones_like(x), x, y], axis=1)
    starts = []
    for fraction in _STARTS:
        floor = fraction * float(losses.min())
        solution = np.linalg.lstsq(columns, np.log(losses - floor), rcond=None)[0]
        solution[1:] = np.clip(solution[1:], 0.01, STEEPEST - 0.01)  # the search starts inside
        starts.append(np.array([*solution, max(floor, 1e-3 * float(losses.min()))]))
    return starts


def _bounds(losses: Array) -> tuple[Array, Array]:
    """Return the lower and upper bounds of θ in the fit; L∞ stays below all losses."""
    upper = np.array([np.inf, STEEPEST, STEEPEST, _BELOW * float(losses.min())])
    return np.array([-np.inf, 0.0, 0.0, 0.0]), upper


def _search(x: Array, y: Array, losses: Array, start: Array) -> OptimizeResult:
    return least_squares(
        lambda theta: _predict(theta, x, y) - losses,
        start,
        jac=lambda theta: _jacobian(theta, x, y),
        bounds=_bounds(losses),
        x_scale="jac",
        ftol=1e-15,
        xtol=1e-15,
        gtol=1e-15,
        max_nfev=400,
    )


def _bootstrap(
    theta: Array, x: Array, y: Array, residuals: Array, resamples: int, seed: int
) -> list[Array]:
    """Return ``resamples`` refits of θ, each to the fitted losses plus residuals drawn at random.

    Residuals are smaller than the true errors, so they are first divided by ``√(1 - leverage)``.
    Then they are centred, and drawn with replacement. Models are not resampled: some samples would
    lack models that scale the encoder, or the decoder.
    """
    fitted = _predict(theta, x, y)
    basis = np.linalg.qr(_jacobian(theta, x, y))[0]
    leverage = np.clip(np.sum(basis**2, axis=1), 0, 0.99)
    scaled = residuals / np.sqrt(1 - leverage)
    scaled -= scaled.mean()
    generator = np.random.default_rng(seed)
    refits = []
    for _ in tqdm(range(resamples), desc="bootstrap", unit="fit", leave=False, disable=None):
        drawn = fitted + generator.choice(scaled, len(scaled))
        start = theta.copy()
        start[1:3] = np.clip(start[1:3], 1e-3, STEEPEST - 1e-3)
        start[3] = np.clip(start[3], 1e-3 * drawn.min(), 0.999 * drawn.min())
        refits.append(_search(x, y, drawn, start).x)
    return refits


def _named(low: Array, high: Array) -> dict[str, Interval]:
    """Turn the ends of intervals of θ into ``{constant: (low, high)}``; log α in θ becomes α."""
    ends = np.stack([low, high])
    with np.errstate(over="ignore"):
        ends[:, 0] = np.exp(ends[:, 0])
    return dict(zip(PARAMETERS, map(tuple, ends.T.tolist()), strict=True))


def read_table(path: str | Path) -> list[Model]:
    """Read the models from a table of losses, whose columns this module's docstring describes.

    Raises:
        ConfigError: the file's name does not end in ``.json``, ``.csv`` or ``.tsv``.
        DataError: the table cannot be read, a cell is missing, or a number is not positive.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".json":
        rows = read_json(path)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"`{path}` must be a JSON list of objects, one for each model.")
    elif suffix in (".csv", ".tsv"):
        heading, *lines = [cells for _, cells in table_rows(path) if cells] or [[]]
        rows = [dict(zip_longest(heading, cells)) for cells in lines]
    else:
        raise ConfigError(f"TABLE must end in .json, .csv or .tsv, but is `{path}` instead.")
    if not rows:
        raise DataError(f"`{path}` holds no models.")
    return [_model(row, f"`{path}`, model {number}") for number, row in enumerate(rows, start=1)]


def _model(row: dict[str, Any], where: str) -> Model:
    """Read a model from a row of the table; ``where`` names file and row in messages."""
    if None in row:  # as the name of a cell behind the last column
        raise DataError(f"{where}: the row has more cells than the table has columns.")
    cells = {name: value for name, value in row.items() if value not in (None, "")}
    for name in COLUMNS:
        if name not in cells:
            raise DataError(f"{where}: `{name}` is missing.")
    for name, value in cells.items():
        cells[name] = _positive(value, f"{where}: `{name}`") if name in NUMBERS else str(value)
    for name in COLUMNS[1:3]:
        cells[name] = int(cells[name])
    return Model(**{name: cells[name] for name in Model.__dataclass_fields__.keys() & cells})


def _positive(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not _LEAST <= number <= _MOST:
        raise DataError(f"{where} must be a positive number, but is `{value!s:.60}` instead.")
    return number


def baseline(models: Sequence[Model], name: str | None = None) -> tuple[float, float]:
    """Return the sizes (N̄e, N̄d) of the baseline, the model called ``name``.

    Without a name, N̄e is the most frequent encoder size and N̄d the most frequent decoder size (the
    smaller one of two equally frequent sizes). Raise ConfigError if no model has this name, or if
    models of several sizes have it.
    """
    if name is None:
        # Of sizes that are equally frequent, `mode` returns the first.
        encoder = mode(sorted(model.encoder_parameters for model in models))
        return encoder, mode(sorted(model.decoder_parameters for model in models))
    sizes = {(m.encoder_parameters, m.decoder_parameters) for m in models if m.name == name}
    if len(sizes) != 1:
        names = ", ".join(dict.fromkeys(model.name for model in models))
        raise ConfigError(
            f"`--base` must name models of a single size, but `{name}` names "
            f"{f'{len(sizes)} sizes' if sizes else 'no model'}; the table has {names:.100}."
        )
    return sizes.pop()


def as_dict(fits: Sequence[Fit], base: tuple[float, float]) -> dict[str, Any]:
    return {
        "law": "L = alpha (base_e / Ne)^p_e (base_d / Nd)^p_d + L_inf",
        "base": {"encoder_parameters": base[0], "decoder_parameters": base[1]},
        "confidence": LEVEL,
        "fits": [
            {
                "dataset": fit.dataset,
                "family": fit.family,
                "models": len(fit.models),
                "r_squared": fit.r_squared,
                "residual_sd": fit.residual_sd,
                "at_bound": fit.at_bound,
                "parameters": {
                    name: {
                        "estimate": getattr(fit.law, name),
                        "jacobian": fit.jacobian[name],
                        "bootstrap": fit.bootstrap[name],
                    }
                    for name in PARAMETERS
                },
            }
            for fit in fits
        ],
    }


def as_table(fits: Sequence[Fit]) -> str:
    """Format each law as a text table: the estimate and both intervals of each constant."""
    heading = ("", "estimate", f"{LEVEL:.0%} (Jacobian)", f"{LEVEL:.0%} (bootstrap)", "")
    parts = []
    for fit in fits:
        label = _label(fit.family, fit.dataset)
        title = f"{label}: " if label else ""
        rows = [
            (
                name,
                f"{getattr(fit.law, name):.4f}",
                "{:.4f} … {:.4f}".format(*fit.jacobian[name]),
                "{:.4f} … {:.4f}".format(*fit.bootstrap[name]),
                "at the bound of the search" if name in fit.at_bound else "",
            )
            for name in PARAMETERS
        ]
        parts.append(f"{title}{len(fit.models)} models, R² = {100 * fit.r_squared:.2f} %")
        parts.append(aligned([heading, *rows]))
    return "\n".join(parts)
