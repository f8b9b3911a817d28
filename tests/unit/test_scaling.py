"""The scaling-law fit against planted laws, scipy's curve_fit, and through the real command."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scaling_paper import BASE, DECODER_LAYER, DEPTHS, DESIGN, ENCODER_LAYER, LAWS, TABLE_3, rows
from scipy.optimize import curve_fit

from fairseq_ext.binary import scaling_law, scaling_plot
from fairseq_ext.binary.scaling_law import PARAMETERS, Fit, Law, Model, fit_law
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support.harness import command, leaves_no_trace, names

NOISE = 0.003  # run-to-run standard deviation of the loss (Ghorbani et al.)
LAW = LAWS["Train Subset", "float"]


def sizes(design: Sequence[tuple[int, int]] = DESIGN) -> tuple[np.ndarray, np.ndarray]:
    layers = np.array(design, float)
    return layers[:, 0] * ENCODER_LAYER, layers[:, 1] * DECODER_LAYER


def models(noise: float = 0.0) -> list[Model]:
    """The paper's 11 · 2 · 24 models, with its slopes."""
    return [Model(**row) for row in rows(noise)]


def fitted(
    losses: np.ndarray, design: Sequence[tuple[int, int]] = DESIGN, unit: float = 1.0, **options
) -> Fit:
    """A fit to losses of the family `x`, with sizes in a unit."""
    pairs = zip(*sizes(design), losses.tolist(), strict=True)
    members = [Model("m", e / unit, d / unit, loss, family="x") for e, d, loss in pairs]
    base = (BASE[0] / unit, BASE[1] / unit)
    return fit_law(members, base, **{"resamples": 1, **options})


def theta(law: Law) -> np.ndarray:
    """The law's constants as the fit searches them."""
    return np.array([np.log(law.alpha), law.p_e, law.p_d, law.L_inf])


def test_the_law_is_the_papers_equation() -> None:
    law = Law(alpha=0.4, p_e=0.2, p_d=0.3, L_inf=0.5, base=(10, 20))
    assert law(10, 20) == pytest.approx(0.9)
    assert law(40, 5) == pytest.approx(0.4 * (10 / 40) ** 0.2 * (20 / 5) ** 0.3 + 0.5, rel=1e-12)


def test_every_law_of_table_3_is_found_again() -> None:
    fits = scaling_law.fit_laws(models(), BASE, resamples=1)
    assert [(fit.dataset, fit.family) for fit in fits] == list(LAWS)
    for fit, planted in zip(fits, LAWS.values(), strict=True):
        for name in PARAMETERS:
            assert getattr(fit.law, name) == pytest.approx(getattr(planted, name), abs=1e-4)
        assert len(fit.models) == 24
        assert fit.r_squared == pytest.approx(1)
        assert fit.at_bound == ()


def test_intervals_cover_the_truth() -> None:
    """Of 44 constants with noise 0.003, 95 % intervals should miss two or three."""
    binary_models = [model for model in models(NOISE) if model.family == "binary"]
    fits = scaling_law.fit_laws(binary_models, BASE, resamples=50)
    for kind in ("jacobian", "bootstrap"):
        covered = sum(
            low <= getattr(LAWS[fit.dataset, fit.family], name) <= high
            for fit in fits
            for name, (low, high) in getattr(fit, kind).items()
        )
        assert covered >= 38, kind
    for fit in fits:
        assert fit.r_squared > 0.99
        assert fit.residual_sd == pytest.approx(NOISE, rel=0.5)


def noisy(seed: int = 3) -> np.ndarray:
    return LAW(*sizes()) + np.random.default_rng(seed).normal(0, NOISE, len(DESIGN))


def test_estimate_and_errors_agree_with_curve_fit() -> None:
    encoder, decoder = sizes()

    def law(_: object, a: float, p_e: float, p_d: float, floor: float) -> np.ndarray:
        return np.exp(a) * (BASE[0] / encoder) ** p_e * (BASE[1] / decoder) ** p_d + floor

    losses = noisy()
    expected, covariance = curve_fit(
        law, None, losses, p0=(-1, 0.2, 0.3, 0.5), xtol=1e-14, ftol=1e-14
    )
    fit = fitted(losses)
    assert theta(fit.law) == pytest.approx(expected, rel=1e-5)
    quantile = 2.085963447265864  # Student's t, 20 degrees of freedom, 97.5 %
    half = quantile * np.sqrt(np.diag(covariance))
    for name, value, width in zip(PARAMETERS, expected, half, strict=True):
        ends = np.array([value - width, value + width])
        interval = np.exp(ends) if name == "alpha" else ends
        assert fit.jacobian[name] == pytest.approx(tuple(interval), rel=1e-4)


def test_bootstrap_is_about_as_wide_and_repeatable() -> None:
    losses = noisy()
    fit = fitted(losses, resamples=200, seed=4)
    for name in PARAMETERS:
        curvature, resampled = fit.jacobian[name], fit.bootstrap[name]
        ratio = (resampled[1] - resampled[0]) / (curvature[1] - curvature[0])
        assert 0.6 < ratio < 1.6, name
    few, repeated, other = (fitted(losses, resamples=20, seed=s) for s in (4, 4, 5))
    assert few == repeated
    assert few.bootstrap != other.bootstrap


def test_the_unit_of_parameters_does_not_matter() -> None:
    unscaled, millions = (fitted(noisy(), unit=unit, resamples=20) for unit in (1, 1e6))
    assert theta(millions.law) == pytest.approx(theta(unscaled.law), rel=1e-6)
    for name in PARAMETERS:
        assert millions.bootstrap[name] == pytest.approx(unscaled.bootstrap[name], rel=1e-5)


def test_five_sizes_are_enough_for_an_exact_law_and_say_so_in_their_intervals() -> None:
    design = [(6, 6), (12, 6), (24, 6), (6, 12), (6, 24)]
    fit = fitted(LAW(*sizes(design)), design)
    assert theta(fit.law) == pytest.approx(theta(LAW), abs=1e-4)
    rough = LAW(*sizes(design)) + np.array([1, -1, 1, -1, 1]) * NOISE
    low, high = fitted(rough, design).jacobian["p_d"]
    assert high - low > 1  # one degree of freedom


def test_an_exponent_of_zero_is_reported_as_a_bound() -> None:
    fit = fitted(Law(0.4, 0.0, 0.3, 0.6, BASE)(*sizes()))
    assert fit.law.p_e == pytest.approx(0, abs=1e-6)
    assert fit.at_bound == ("p_e",)


@pytest.mark.parametrize(
    ("design", "message"),
    [
        (DESIGN[:4], "at least 5 different sizes, but `x` has 4"),
        ([*DESIGN[:4], *DESIGN[:4]], "at least 5 different sizes, but `x` has 4"),
        (DESIGN[:12], "`x` do not determine.*models that scale the decoder alone"),
        (DESIGN[12:], "`x` do not determine.*models that scale the encoder alone"),
        ([(depth, depth) for depth in DEPTHS], "`x` do not determine"),
    ],
)
def test_refuses_designs_that_determine_nothing(design, message) -> None:
    with pytest.raises(DataError, match=message):
        fitted(LAW(*sizes(design)), design)


def test_refuses_losses_that_are_no_power_law() -> None:
    for losses in (np.full(len(DESIGN), 1.5), 2 - LAW(*sizes())):  # larger models are worse
        with pytest.raises(DataError, match="losses of `x` do not determine"):
            fitted(losses)


HEADING = ("name", "encoder_parameters", "decoder_parameters", "loss", "family", "dataset")


def write_table(path: Path, trained_models: Sequence[Model], *columns: str) -> Path:
    fields = (*HEADING, *columns)
    rows = [[getattr(model, name) for name in fields] for model in trained_models]
    if path.suffix == ".json":
        path.write_text(json.dumps([dict(zip(fields, row, strict=True)) for row in rows]))
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([fields, *rows])
    return path


@pytest.mark.parametrize(
    ("suffix", "mark"), [("json", b""), ("csv", b""), ("tsv", b""), ("csv", b"\xef\xbb\xbf")]
)
def test_tables_are_read_alike(suffix: str, mark: bytes, tmp_path: Path) -> None:
    """A byte-order mark is no part of the heading."""
    trained_models = models()[:30]
    table = write_table(tmp_path / f"t.{suffix}", trained_models)
    table.write_bytes(mark + table.read_bytes())
    assert scaling_law.read_table(table) == trained_models


def test_optional_columns_may_be_missing_or_empty(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(",".join(HEADING[:4]) + ",train_loss\na,10,20,1.5,\nb,10,30,1.25,1.125\n")
    first, second = scaling_law.read_table(path)
    assert first == Model("a", 10, 20, 1.5)
    assert (second.train_loss, second.parameters) == (1.125, 40)


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("t.txt", "x", ConfigError, "must end in .json, .csv or .tsv"),
        ("t.json", "[", DataError, "t.json`, line 1: not JSON"),
        ("t.csv", "name,loss\na\rb,1\n", DataError, "model 1: `encoder_parameters` is missing"),
        ("t.csv", 'name,loss\n"a,1\n', DataError, "t.csv`, from line 2: not CSV .unexpected end"),
        ("t.csv", "name,loss\na,1,2\n", DataError, "model 1: the row has more cells than the"),
        ("t.json", "{}", DataError, "JSON list of objects"),
        ("t.json", "[]", DataError, "holds no models"),
        ("t.csv", "{},\na,1,2,nan\n", DataError, "model 1: `loss` must be a positive number"),
        ("t.csv", "{},\na,1,2,1\nb,x,2,1\n", DataError, "model 2: .* but is `x` instead"),
        ("t.csv", "{},\na,0,2,1\n", DataError, "`encoder_parameters` must be a positive number"),
    ],
)
def test_bad_tables_are_refused_by_row(name, text, error, message, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text.replace("{},", ",".join(HEADING[:4])), newline="")
    with pytest.raises(error, match=message):
        scaling_law.read_table(path)


def test_baseline_is_where_the_arms_meet_or_what_is_named() -> None:
    trained_models = models()
    assert scaling_law.baseline(trained_models) == BASE
    assert scaling_law.baseline(trained_models, "8L6L") == (8 * ENCODER_LAYER, BASE[1])
    with pytest.raises(ConfigError, match="`7L7L` names no model; the table has 6L6L, 8L6L"):
        scaling_law.baseline(trained_models, "7L7L")


def test_arms_share_the_baseline() -> None:
    trained_models = [*models()[:24], Model("12L12L", 12 * ENCODER_LAYER, 12 * DECODER_LAYER, 1.0)]
    arms = scaling_plot.arms(trained_models, BASE)
    assert [model.name for model in arms["encoder-scaling"]].count("6L6L") == 2
    assert len(arms["encoder-scaling"]) == len(arms["decoder-scaling"]) == 13
    assert [model.name for model in arms["other"]] == ["12L12L"]


def test_curves_go_through_the_losses() -> None:
    (fit,) = scaling_law.fit_laws(models()[:24], BASE, resamples=1)
    for arm, members in scaling_plot.arms(fit.models, BASE).items():
        line = np.array(scaling_plot.curve(fit, arm, BASE, points=200))
        losses = np.interp([model.parameters for model in members], *line.T)
        assert losses == pytest.approx([model.loss for model in members], abs=1e-4)


def test_command_prints_draws_and_saves(tmp_path: Path) -> None:
    """For a float and a binary family on one dataset."""
    trained_models = [replace(model, train_loss=0.9 * model.loss) for model in models()[:48]]
    table = write_table(tmp_path / "losses.tsv", trained_models, "train_loss")
    figure, fits = tmp_path / "law.1.svg", tmp_path / "fits.json"
    printed = command("scaling-fit", table, "--bootstrap", 100, "--json", fits, "-o", figure)
    assert printed.count("24 models, R² = 100.00 %") == 2
    assert printed.count("(Jacobian)") == printed.count("(bootstrap)") == 2
    report = json.loads(fits.read_text())
    assert report["base"] == {"encoder_parameters": BASE[0], "decoder_parameters": BASE[1]}
    assert [fit["family"] for fit in report["fits"]] == ["float", "binary"]
    for fit, slopes in zip(report["fits"], TABLE_3["Train Subset"], strict=True):
        estimates = [fit["parameters"][name]["estimate"] for name in ("p_e", "p_d")]
        assert estimates == pytest.approx(slopes, abs=1e-4)
        for name in PARAMETERS:
            for kind in ("jacobian", "bootstrap"):
                low, high = fit["parameters"][name][kind]
                assert low <= high
    assert "<svg" in figure.read_text()
    labels = (tmp_path / "law.1-training.svg").read_text()
    assert "training loss (per token)" in labels
    assert "test loss" not in labels  # the panel is of the dataset in its title
    drawn = json.loads((tmp_path / "law.1.json").read_text())["groups"]
    assert [group["family"] for group in drawn] == ["float", "binary"]
    training = json.loads((tmp_path / "law.1-training.json").read_text())["groups"]
    assert training[0]["train_and_test"][0] == pytest.approx(
        [0.9 * trained_models[0].loss, trained_models[0].loss]
    )


def test_command_draws_no_second_picture_without_training_losses(tmp_path: Path) -> None:
    table = write_table(tmp_path / "losses.json", models()[:24])
    command("scaling-fit", table, "--bootstrap", 100, "-o", tmp_path / "law.1")
    assert names(tmp_path) == ["law.1.json", "law.1.png", "losses.json"]
    assert (tmp_path / "law.1.png").read_bytes().startswith(b"\x89PNG")


def test_command_refuses_with_one_line_and_writes_nothing(tmp_path: Path) -> None:
    table = write_table(tmp_path / "losses.csv", models()[:12])
    words = ("scaling-fit", table, "-o", tmp_path / "law.png")
    leaves_no_trace(tmp_path, "error: The losses of `Train Subset, float` do not", *words)
    message = "`--bootstrap` must be at least 100, but is 5 instead."
    leaves_no_trace(tmp_path, message, *words, "--bootstrap", 5)
