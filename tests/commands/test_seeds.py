"""Systems with several runs: their scores, and the bootstrap that draws runs as well."""

from __future__ import annotations

import csv
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from fairseq_ext.evaluation import compare, tables
from fairseq_ext.evaluation.bootstrap import paired_bootstrap
from fairseq_ext.evaluation.seeds import bootstrap_of_means, bootstrap_over_runs
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.commands.test_compare import damaged, sentences
from tests.support.harness import run, write_lines

NUMBERS = ("95% low", "95% high", "SD", "p")


def test_one_run_each_is_the_paired_bootstrap():
    text = sentences()
    systems = {name: damaged(text, share, 3) for name, share in (("a", 0.2), ("b", 0.22))}
    ours = bootstrap_over_runs({name: [lines] for name, lines in systems.items()}, text, "a")
    theirs = paired_bootstrap(systems, text, "a")
    assert ours.signatures == theirs.signatures
    for name in systems:
        for metric, expected in theirs.estimates[name].items():
            found = ours.estimates[name][metric]
            assert (found.value, found.p) == (expected.value, expected.p)
            assert found.half_width == pytest.approx(expected.half_width, rel=0.02)
            assert (found.runs, found.deviation) == (1, None)
    assert 0.05 < ours.estimates["b"]["BLEU"].p < 1


def test_a_second_run_of_one_system_changes_no_other_p():
    text = sentences()
    systems = {name: [damaged(text, share, 3)] for name, share in (("a", 0.2), ("b", 0.22))}
    alone = bootstrap_over_runs(systems, text, "a").estimates["b"]
    more = systems | {"c": [damaged(text, 0.3, seed) for seed in (1, 2)]}
    assert bootstrap_over_runs(more, text, "a").estimates["b"] == alone


def test_against_loops_over_text():
    """Each sample's score from sacrebleu, given the very sentences and runs that were drawn."""
    text, samples = sentences(20), 100
    systems = {
        "a": [damaged(text, 0.2, seed) for seed in (1, 2, 3)],
        "b": [damaged(text, 0.3, seed) for seed in (4, 5)],
    }
    found = bootstrap_over_runs(systems, text, "a", samples).estimates
    draw = np.random.default_rng(12345)
    places = draw.choice(20, size=(samples, 20), replace=True)
    runs = {
        name: draw.integers(len(several), size=(samples, len(several)))
        for name, several in systems.items()
    }

    def bleu(lines: list[str], chosen: list[int]) -> float:
        drawn = [text[i] for i in chosen]
        return sacrebleu.corpus_bleu([lines[i] for i in chosen], [drawn]).score

    def widened(name: str, chosen: list[int], numbers: list[int]) -> float:
        scores = [bleu(run, chosen) for run in systems[name]]
        middle, drawn = statistics.fmean(scores), statistics.fmean(scores[one] for one in numbers)
        return middle + math.sqrt(len(scores) / (len(scores) - 1)) * (drawn - middle)

    means = {
        name: [
            widened(name, chosen, numbers)
            for chosen, numbers in zip(places, runs[name], strict=True)
        ]
        for name in systems
    }
    whole = {
        name: [bleu(lines, list(range(20))) for lines in several]
        for name, several in systems.items()
    }
    for name in systems:
        estimate = found[name]["BLEU"]
        assert estimate.value == pytest.approx(statistics.fmean(whole[name]))
        assert estimate.deviation == pytest.approx(statistics.stdev(whole[name]))
        bounds = np.percentile(means[name], (2.5, 97.5))
        assert (estimate.low, estimate.high) == pytest.approx(tuple(bounds))
    differences = np.array(means["b"]) - np.array(means["a"])
    measured = abs(found["b"]["BLEU"].value - found["a"]["BLEU"].value)
    larger = sum(abs(one - differences.mean()) > measured for one in differences)
    assert found["b"]["BLEU"].p == pytest.approx((larger + 1) / (samples + 1))


def test_luck_of_the_seed_is_no_difference():
    """Runs of one system differ by more than the systems: clear on sentences alone, not here."""
    text = sentences()
    good, bad = damaged(text, 0.1, 1), damaged(text, 0.4, 2)
    fair = damaged(text, 0.3, 3)
    single = paired_bootstrap({"lucky": good, "other": fair}, text, "other").estimates
    assert single["lucky"]["BLEU"].p < 0.01
    several = bootstrap_over_runs({"lucky": [good, bad], "other": [fair]}, text, "other").estimates
    assert several["lucky"]["BLEU"].p > 0.2
    steady = bootstrap_over_runs({"lucky": [good, good], "other": [fair]}, text, "other").estimates
    assert steady["lucky"]["BLEU"].p < 0.01
    assert steady["lucky"]["BLEU"].deviation == 0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_intervals_have_the_variance_of_means_of_new_runs(count: int):
    """Sentences that say nothing, runs that do: the spread is that of their mean, s / sqrt(n)."""
    runs = [[float(number)] * 10 for number in range(count)]
    found = bootstrap_of_means("x", {"a": runs, "b": [[0.0] * 10]}, "x", "b", samples=20_000)
    estimate, spread = found.estimates["a"]["x"], statistics.stdev(range(count)) / count**0.5
    draw = np.random.default_rng(1).integers(count, size=(20_000, count)).mean(axis=1)
    wanted = np.percentile(draw, (2.5, 97.5)) - (count - 1) / 2
    scale = spread / (statistics.pstdev(range(count)) / count**0.5)
    for bound, one in zip((estimate.low, estimate.high), wanted, strict=True):
        assert bound - (count - 1) / 2 == pytest.approx(scale * one, rel=0.02)


def test_what_cannot_be_compared_names_the_run():
    text = sentences(4)
    with pytest.raises(DataError, match="`a, run 2` translates 3 sentences"):
        bootstrap_over_runs({"a": [text, text[:3]]}, text, "a")
    with pytest.raises(ConfigError, match="must be one of a"):
        bootstrap_over_runs({"a": [text, text]}, text, "a, run 1")


def test_systems_of_several_runs_are_named_by_commas():
    found = compare.parse_system("x=text:a,b,log=train.log")
    assert found == compare.System("x", (Path("a"), Path("b")), log=Path("train.log"), plain=True)
    for wrong in ("x=a,", "x=,a", "x=a,,b"):
        with pytest.raises(ConfigError, match="NAME=GENERATED"):
            compare.parse_system(wrong)


@pytest.mark.system
def test_the_command_writes_means_and_tables(tmp_path: Path):
    text = sentences()
    write_lines(tmp_path / "ref", text)
    for name, share, seed in (("a", 0.2, 1), ("b", 0.25, 2), ("c", 0.5, 3)):
        write_lines(tmp_path / name, damaged(text, share, seed))
    shown = run(
        *("fairseq-ext", "compare", "--system", "two_runs=text:a,b", "--system", "one=text:c"),
        *("--ref", "ref", "--samples", 200, "-o", "out"),
        cwd=tmp_path,
    ).stdout
    assert "p: two-sided paired bootstrap over sentences and runs" in shown
    assert "with fewer than about five runs, p is too small" in shown
    assert json.loads((tmp_path / "out.json").read_text())["test"] in shown
    with (tmp_path / "out.csv").open(newline="") as file:
        heading, first, second = csv.reader(file)
    row, other = dict(zip(heading, first, strict=True)), dict(zip(heading, second, strict=True))
    bleu = [
        sacrebleu.corpus_bleu((tmp_path / name).read_text().splitlines(), [text]).score
        for name in ("a", "b")
    ]
    assert heading[:7] == ["system", "runs", "BLEU", *(f"BLEU {x}" for x in NUMBERS)]
    assert float(row["BLEU"]) == pytest.approx(statistics.fmean(bleu))
    assert float(row["BLEU SD"]) == pytest.approx(statistics.stdev(bleu))
    assert float(row["BLEU 95% low"]) < float(row["BLEU"]) < float(row["BLEU 95% high"])
    assert (row["runs"], other["runs"], other["BLEU SD"], row["BLEU p"]) == ("2", "1", "", "")
    assert 0 < float(other["BLEU p"]) < 0.05
    latex = (tmp_path / "out.tex").read_text()
    assert r"two\_runs" in latex
    assert latex.count(r"\\") == 3
    assert all((tmp_path / f"out.{ending}").is_file() for ending in ("md", "png", "json"))


def test_latex_shows_every_character():
    table = tables.latex([["a & b", "50%"], ["x_{1}^~", "\\±–"], ["<unk>", "a|b"]])
    assert r"a \& b & 50\% \\" in table
    assert r"\textless{}unk\textgreater{} & a\textbar{}b \\" in table
    assert "\n{}[a] \\\\\n{}* \\\\\n" in tables.latex([["x"], ["[a]"], ["*"]])
    assert r"x\_\{1\}\textasciicircum{}\textasciitilde{} & \textbackslash{}$\pm$-- \\" in table
