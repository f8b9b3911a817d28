"""Tables of trained models for the scaling law: reading, grouping, fitting, printing.

A table is a ``.json`` list of objects, or ``.csv`` or ``.tsv`` text with a heading. A row has one
model and one evaluation set::

    name   encoder_parameters  decoder_parameters  loss   [family]  [dataset]  [train_loss]

Parameters are counted without embeddings, losses per token. The models of a family (float, binary)
share a law. Each family is fitted on each dataset.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mode
from typing import Any

from fairseq_ext.binary.scaling.law import LEVEL, PARAMETERS, Fit, fit_law
from fairseq_ext.evaluation.outputs import read_text
from fairseq_ext.evaluation.tables import aligned
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.json_files import read_json

COLUMNS = ("name", "encoder_parameters", "decoder_parameters", "loss")
NUMBERS = {*COLUMNS[1:], "train_loss"}
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LEAST, _MOST = 1e-9, 1e18  # a loss or size outside would overflow the fit


@dataclass(frozen=True)
class Model:
    """The size of a trained model, without embeddings, and its loss per token on a dataset.

    ``family`` names the models that share a law, such as ``float``.
    """

    name: str
    encoder_parameters: int
    decoder_parameters: int
    loss: float
    family: str = ""
    dataset: str = ""
    train_loss: float | None = None

    @property
    def parameters(self) -> int:
        return self.encoder_parameters + self.decoder_parameters


@dataclass(frozen=True)
class Group:
    """The models of one family on one dataset, and their law."""

    family: str
    dataset: str
    models: tuple[Model, ...]
    fit: Fit


def read_table(path: str | Path) -> list[Model]:
    """Read the models of a ``.json``, ``.csv`` or ``.tsv`` table.

    Raises:
        DataError: unreadable, a column missing, or a value out of range (named by row).
        ConfigError: another kind of file.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".json":
        rows = read_json(path)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"`{path}` must be a JSON list of objects, one for each model.")
    elif suffix in _DELIMITERS:
        text = read_text(path).removeprefix("\ufeff")  # spreadsheets write it
        try:
            lines = io.StringIO(text, newline="")
            rows = list(csv.DictReader(lines, delimiter=_DELIMITERS[suffix], strict=True))
        except csv.Error as error:
            raise DataError(f"`{path}`: {error}; correct the table.") from None
    else:
        raise ConfigError(f"TABLE must end in .json, .csv or .tsv, but is `{path}` instead.")
    if not rows:
        raise DataError(f"`{path}` holds no models.")
    return [_model(row, f"`{path}`, model {number}") for number, row in enumerate(rows, start=1)]


def _model(row: dict[str, Any], where: str) -> Model:
    """Make a model of a row, whose empty cells count as missing."""
    if None in row:  # what `csv` calls the cells behind the last column
        raise DataError(f"{where}: the row has more cells than the table has columns.")
    cells = {name: value for name, value in row.items() if value not in (None, "")}
    for name in COLUMNS:
        if name not in cells:
            raise DataError(f"{where}: `{name}` is missing.")
    for name, value in cells.items():
        cells[name] = _positive(value, f"{where}: `{name}`") if name in NUMBERS else str(value)
    for name in COLUMNS[1:3]:
        cells[name] = int(cells[name])
    return Model(
        **{field.name: cells[field.name] for field in fields(Model) if field.name in cells}
    )


def _positive(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not _LEAST <= number <= _MOST:
        raise DataError(f"{where} must be a positive number, but is `{value!s:.60}` instead.")
    return number


def baseline(models: Sequence[Model], name: str | None = None) -> tuple[int, int]:
    """Return (N̄e, N̄d) of model ``name``, or where encoder- and decoder-scaling models meet.

    They meet at the most frequent encoder size and the most frequent decoder size (of equally
    frequent ones, the smallest).

    Raises:
        ConfigError: no model has this name, or two of different sizes do.
    """
    if name is None:
        # Of sizes that are equally frequent, `mode` returns the first.
        encoder = mode(sorted(model.encoder_parameters for model in models))
        return encoder, mode(sorted(model.decoder_parameters for model in models))
    sizes = {(m.encoder_parameters, m.decoder_parameters) for m in models if m.name == name}
    if len(sizes) != 1:
        names = ", ".join(dict.fromkeys(model.name for model in models))
        raise ConfigError(
            f"`--base` must name one of the models, but `{name}` is the name of "
            f"{len(sizes) or 'none'}; there are {names:.100}."
        )
    return sizes.pop()


def fit_groups(
    models: Sequence[Model], base: tuple[int, int], *, resamples: int = 500, seed: int = 1
) -> list[Group]:
    """Fit one law for each family on each dataset; see :func:`fit_law`.

    ``base`` is the same for all, so that their α are comparable.
    """
    members: dict[tuple[str, str], list[Model]] = {}
    for model in models:
        members.setdefault((model.dataset, model.family), []).append(model)
    groups = []
    for (dataset, family), group_models in members.items():
        label = _label(family, dataset)
        fit = fit_law(
            [model.encoder_parameters for model in group_models],
            [model.decoder_parameters for model in group_models],
            [model.loss for model in group_models],
            base,
            what=f"`{label}`" if label else "the table",
            resamples=resamples,
            seed=seed,
        )
        groups.append(Group(family, dataset, tuple(group_models), fit))
    return groups


def _label(family: str, dataset: str) -> str:
    return ", ".join(part for part in (dataset, family) if part)


def as_dict(groups: Sequence[Group], base: tuple[int, int]) -> dict[str, Any]:
    """Return all fits for JSON."""
    return {
        "law": "L = alpha (base_e / Ne)^p_e (base_d / Nd)^p_d + L_inf",
        "base": {"encoder_parameters": base[0], "decoder_parameters": base[1]},
        "confidence": LEVEL,
        "fits": [
            {
                "dataset": group.dataset,
                "family": group.family,
                "models": group.fit.models,
                "r_squared": group.fit.r_squared,
                "residual_sd": group.fit.residual_sd,
                "at_bound": list(group.fit.at_bound),
                "parameters": {
                    name: {
                        "estimate": getattr(group.fit.law, name),
                        "jacobian": list(group.fit.jacobian[name]),
                        "bootstrap": list(group.fit.bootstrap[name]),
                    }
                    for name in PARAMETERS
                },
            }
            for group in groups
        ],
    }


def as_table(groups: Sequence[Group]) -> str:
    """Format the estimates with both intervals, one line for each constant."""
    heading = ("", "estimate", f"{LEVEL:.0%} (Jacobian)", f"{LEVEL:.0%} (bootstrap)", "")
    parts = []
    for group in groups:
        fit = group.fit
        label = _label(group.family, group.dataset)
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
        parts.append(f"{title}{fit.models} models, R² = {100 * fit.r_squared:.2f} %")
        parts.append(aligned([heading, *rows]))
    return "\n".join(parts)
