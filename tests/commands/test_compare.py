"""``fairseq-ext compare``, against sacrebleu's command, torch's files and real trainings; its p."""

import csv
import dataclasses
import gzip
import math
import random
import re
import shutil
import statistics
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from scipy import stats

from fairseq_ext.checkpoints.size import read_size
from fairseq_ext.commands.evaluation_options import UndoingOptions
from fairseq_ext.decoding import latency
from fairseq_ext.evaluation import compare, compare_report, outputs, significance, training_log
from fairseq_ext.evaluation.score import build_metrics
from fairseq_ext.evaluation.significance import Variances, bootstrap, bootstrap_p
from fairseq_ext.evaluation.tables import aligned, latex, read_table
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.json_files import read_json
from tests.support import models
from tests.support.harness import (
    BIN,
    command,
    error_line,
    fairseq,
    leaves_no_trace,
    run,
    write_lines,
)

WORDS = ["the", "a", "house", "tree", "river", "walks", ",", "sees", "big", "old", "of", "never"]


def sentences(count: int = 60, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(count)]


def damaged(lines: list[str], share: float, seed: int) -> list[str]:
    """The lines with a share of the words replaced."""
    draw = random.Random(seed)
    return [
        " ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split())
        for line in lines
    ]


def generated(path: Path, lines: list[str], speed: str = "1,234.5") -> Path:
    """What fairseq-generate prints for these hypotheses, in an order of its own."""
    numbered = [f"H-{i}\t-0.5\t{line}" for i, line in enumerate(lines)]
    random.Random(0).shuffle(numbered)
    closing = f"Translated 9 sentences (99 tokens) in 0.1s (9.00 sentences/s, {speed} tokens/s)"
    return write_lines(path, [*numbered, f"INFO:fairseq_cli.generate:{closing}"])


@pytest.fixture(scope="module")
def outputs_of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ref`` and the text and generated output of ``good``, ``fair`` and ``bad``."""
    folder = tmp_path_factory.mktemp("compare")
    reference = sentences()
    write_lines(folder / "ref", reference)
    for seed, (name, share) in enumerate({"good": 0.1, "fair": 0.14, "bad": 0.5}.items()):
        lines = damaged(reference, share, seed)
        write_lines(folder / f"{name}.txt", lines)
        generated(folder / name, lines)
    return folder


def compared(folder: Path, *words: str, **how: Any) -> compare.Result:
    """Compare systems, given as to ``--system``, on ``ref`` of a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return compare.compare([*map(compare.parse_system, words)], "ref", samples=100, **how)


def test_rows_keep_their_order_whichever_is_the_baseline(outputs_of_three: Path) -> None:
    result = compared(outputs_of_three, "bad=bad", "good=good", "fair=fair", baseline="good")
    assert [row.name for row in result.systems] == ["bad", "good", "fair"]
    assert [row.scores["BLEU"].p is None for row in result.systems] == [False, True, False]
    assert {row.generation_speed for row in result.systems} == {1234.5}


def test_a_system_alone_has_intervals_and_no_p(outputs_of_three: Path) -> None:
    result = compared(outputs_of_three, "only=fair")
    score = result.systems[0].scores["BLEU"]
    assert score.low < score.value < score.high
    assert "p (BLEU)" not in compare_report.rows(result)[0]
    assert not [note for note in compare_report.notes(result) if note.startswith("p: ")]


def test_runs_of_a_system_become_text_in_the_same_way(tmp_path: Path) -> None:
    for name, tokenize in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        Pipeline("de", "en", tokenize=tokenize, subwords="joined").save(tmp_path / name)
        write_lines(tmp_path / name / "out", ["H-0\t-1\tYes ( no ) ."])
    write_lines(tmp_path / "ref", ["Yes (no)."])
    runs = f"x={tmp_path / 'a' / 'out'},{tmp_path / 'b' / 'out'}"
    message = error_line("compare", "--ref", tmp_path / "ref", "--system", runs)
    assert "b/out becomes text in another way" in message
    (tmp_path / "b" / "text.json").unlink()
    paths = [tmp_path / name / "out" for name in "ab"]
    for order in (paths, paths[::-1]):  # the only text.json counts for both
        assert UndoingOptions().undoing(order).pipeline.tokenize


def test_a_samples_source_is_text_where_its_language_is_known(tmp_path: Path) -> None:
    write_lines(tmp_path / "ref", ["Yes (no)."])
    write_lines(tmp_path / "out", ["S-0\tJa ( ne@@ in ) .", "H-0\t-1\tYes ( no ) ."])
    for src, expected in (("de", "Ja (nein)."), ("", "Ja ( nein ) .")):
        undoing = Postprocessor(Pipeline(src, "en", tokenize=True, subwords="joined"))
        result = compared(tmp_path, "a=out", undoing={"a": undoing})
        assert result.samples[0].source == expected
        assert result.samples[0].translations == {"a": "Yes (no)."}


def test_plain_text_stands_beside_generated_output(outputs_of_three: Path) -> None:
    result = compared(outputs_of_three, "a=fair", "b=text:fair.txt", tokenized_reference="ref")
    first, second = result.systems
    assert first.scores["BLEU"].value == second.scores["BLEU"].value
    assert second.scores["BLEU"].p == second.scores["chrF"].p == 1
    assert first.tokenized_bleu > 0
    assert second.tokenized_bleu is second.generation_speed is None


def test_the_table_of_translations_makes_the_comparison_again(
    outputs_of_three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens stay tokens and text stays text, several runs included, whatever the cells hold."""
    monkeypatch.chdir(shutil.copytree(outputs_of_three, tmp_path / "new"))
    write_lines(Path("odd.txt"), [f'"{line}\t;' for line in outputs.read_lines("bad.txt")])
    for words in (
        "--system two=good,fair --system odd@home=text:odd.txt --tokenized-ref ref -o a",
        "--system table:a.tsv.gz --tokenized-ref ref -o b.svg",
        "--system odd@home=table:a.tsv.gz --json c.json",
    ):
        command("compare", *words.split(), "--ref", "ref", "--samples", "100")
    first, second, third = (read_json(f"{name}.json") for name in "abc")
    assert first["systems"][0].pop("generation_speed")
    assert second["systems"][0].pop("generation_speed") is None
    for content in (first, second):
        for sample in content.pop("samples"):
            assert sample["translations"].keys() == {"two", "odd@home"}
    assert first == second
    assert third["systems"][0]["scores"]["BLEU"]["p"] is None
    assert Path("a.tsv.gz").read_bytes() == Path("b.tsv.gz").read_bytes()
    kinds = {path.suffix for path in Path().glob("b.*")}
    assert kinds == {".md", ".csv", ".tex", ".svg", ".json", ".gz", ".html"}


def test_a_table_keeps_the_rules_that_make_text_of_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By text.json or by an option; options given with the table have priority."""
    monkeypatch.chdir(tmp_path)
    write_lines(Path("ref"), ["Yes (no), we don't." * 3, "A long line. " + "x" * 150_000])
    lines = ["Yes ( no@@ ) , we do@@ n &apos;t ." * 3, "A long line . " + "x" * 150_000]
    for path in (Path("out"), Path("run/out")):
        write_lines(path, [f"H-{i}\t-1\t{line}" for i, line in enumerate(lines)])
    Pipeline("de", "en", tokenize=True, subwords="joined").save(Path("run"))
    common = ["compare", "--ref", "ref", "--samples", "100", "--json", "scores.json"]

    def scores(words: str) -> list[float]:
        command(*common, *words.split())
        return [row["scores"]["chrF"]["value"] for row in read_json("scores.json")["systems"]]

    table, runs = "--system table:a.tsv.gz", "--system a=out --system b=run/out"
    with_rules = scores(f"{runs} --detokenize en -o a")
    assert scores(table) == with_rules
    assert csv.field_size_limit() == 131_072  # for other files, where it finds open quotations
    as_tokens = scores("--system a=out")
    assert as_tokens[0] < with_rules[0]
    assert scores(f"{table} --keep-tokens") == as_tokens * 2
    again = f"{table} --tokenized-ref a --tokenized-ref b"
    assert "`--tokenized-ref` is given twice" in error_line(*common, *again.split())
    scores(f"{runs} -o run/a")  # only the second run has a text.json
    assert scores("--system table:run/a.tsv.gz") == [*as_tokens, with_rules[1]]


def test_the_name_of_a_run_is_no_name_of_a_system(outputs_of_three: Path) -> None:
    with pytest.raises(ConfigError, match=r"`--system a@2`: .*choose another name"):
        compared(outputs_of_three, "a=good", "a@2=good")
    compared(outputs_of_three, "a@2=good")
    with pytest.raises(ConfigError, match=r"marks tokens by `:tokens` and run N"):
        compared(outputs_of_three, "a:tokens=good")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nx\ty\nz\n", "row 3: 1 cells, but the first row names 2 columns."),
        (b"a\ta\nx\ty\n", "is not a table of translations"),
        (b"a\tb\n", "is not a table of translations"),
        (b"", "is not a table of translations"),
        (b"a\ta@2:tokens\nx\ty\n", "all runs of `a` must be text, or all tokens of one language"),
        (b"b:tokens=de\tb@2:tokens\nx\ty\n", "all runs of `b` must be text"),
        (b"a\nx\n", "the table has a, but not `b`."),
        (b"b\n\xff\n", "line 2: not UTF-8"),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(content))
    with pytest.raises((DataError, ConfigError), match=re.escape(message)):
        compare.parse_system(f"b=table:{tmp_path / 't.tsv.gz'}")
    for damaged_bytes in (b"a\nx\n", gzip.compress(b"b\nx\n" * 99)[:-9]):
        (tmp_path / "u.tsv.gz").write_bytes(damaged_bytes)
        with pytest.raises(DataError, match=r"u\.tsv\.gz is damaged or unsafe: "):
            read_table(tmp_path / "u.tsv.gz")


def test_equal_scores_are_no_difference() -> None:
    """Two useless systems, both of BLEU 0.0 but with other words, and two of one good score."""
    references = [f"the cat number {i} sat on the mat ." for i in range(40)]
    systems = {
        "no": [["x"] * 40],
        "none": [["y z"] * 40],
        "one": [[*references[:20], *["x"] * 20]],
        "two": [[*["x"] * 20, *references[20:]]],
    }
    for baseline, other in (("no", "none"), ("one", "two")):
        estimates = bootstrap(systems, build_metrics(references), baseline, samples=100)
        assert estimates[other]["BLEU"].value == estimates[baseline]["BLEU"].value, other
        assert estimates[other]["BLEU"].p == 1, other
    assert estimates["no"]["BLEU"].value == 0
    assert estimates["no"]["BLEU"].p < 0.05
    for runs in (1, 2):  # equal translations do not show how scores vary
        equal = {name: systems["one"] * runs for name in "ab"}
        estimate = bootstrap(equal, build_metrics(references), "a", 100)["b"]["BLEU"]
        difference = estimate.difference
        assert (estimate.p, difference.value, difference.detectable) == (1, 0, None)
        assert difference.runs_needed is difference.sentences_needed is None


def test_a_system_is_read_from_one_word() -> None:
    system = compare.parse_system("my name=out=1,x.txt,log=a,b.log,checkpoint=c=d.pt")
    assert system == compare.System(
        "my name", (Path("out=1"), Path("x.txt")), Path("c=d.pt"), Path("a,b.log")
    )
    assert compare.parse_system("a=b") == compare.System("a", (Path("b"),))
    assert compare.parse_system("a=text:b") == compare.System("a", (Path("b"),), plain=True)
    several = compare.parse_system("x=text:a,b,log=train.log")
    paths = (Path("a"), Path("b"))
    assert several == compare.System("x", paths, log=Path("train.log"), plain=True)


@pytest.mark.parametrize(
    "argument",
    ["x", "=x", "x=", "x=text:", "a=b,log=", "a=b,log=c,log=d", "a=,log=c", "x=a,", "x=,a"],
)
def test_what_is_no_system_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=f"but is `{argument}` instead"):
        compare.parse_system(argument)


@pytest.mark.parametrize("name", ["gru", "gru-shared", "linformer", "muse", "muse-separate"])
def test_parameters_and_bytes_are_the_models(tmp_path: Path, name: str) -> None:
    model, _ = models.build(models.ARCHITECTURES[name])
    state = {
        "cfg": {"model": {"_name": name}},
        "model": model.state_dict(),
        "optimizer_history": [{"num_updates": 5}, {"num_updates": 70}],
    }
    torch.save(state, tmp_path / "model.pt")
    weights = read_size(tmp_path / "model.pt")
    assert weights.parameters == sum(weight.numel() for weight in model.parameters())
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        parts = [part for part in archive.infolist() if re.search(r"/data/\d+$", part.filename)]
    assert weights.tensor_bytes == sum(part.file_size for part in parts)
    assert (weights.architecture, weights.updates) == (name, 70)


PARAMETERS = "x | num. shared model params: 1,000 (num. trained: 1,000)"


@pytest.mark.parametrize("kind", ["json", "simple"])
def test_a_log_of_either_format_says_the_same(kind: str, tmp_path: Path) -> None:
    lines = [
        PARAMETERS,
        "x | train_inner | epoch 001:  5 / 9 loss=9, wpb=1, num_updates=5, train_wall=5",
        "x | valid | epoch 001 | valid on 'valid' subset | loss 7 | wpb 5 | num_updates 9",
    ]
    form = "x | epoch 00{} | loss 4.5 | wpb 100.5 | num_updates {} | train_wall {}"
    if kind == "json":
        form = 'x | {{"epoch": {}, "train_loss": "4.5", "train_wpb": "100.5", '
        form += '"train_num_updates": "{}", "train_train_wall": "{}", "train_wall": "99"}}'
    lines += [form.format(*epoch) for epoch in ((1, 9, 3), (1, 10, 4), (2, 30, 5))]
    cut = form.format(3, 40, 50)[:-1]
    (tmp_path / "log").write_text("\n".join([*lines, cut]))
    training = training_log.read_training(tmp_path / "log")
    assert training == training_log.Training(1000, 30, 30 * 100.5 / 9, 9, 3015)
    for log in ([], lines[:3], lines[1:]):
        with pytest.raises(DataError, match="no finished epoch"):
            training_log.read_training(write_lines(tmp_path / "log", log))


@pytest.mark.parametrize(
    ("start", "counted"),
    [
        ([], (40, 50, 2000)),
        (["x | Loaded checkpoint a/b.pt (epoch 4 @ 300 updates)"], (30, 100, 3000)),
    ],
    ids=["new", "loaded"],
)
def test_the_log_of_a_run_that_goes_on_counts_what_it_shows(tmp_path, start, counted):
    line = "x | epoch 00{} | wpb 10 | num_updates {} | train_wall 50"
    lines = [PARAMETERS, *start, line.format(4, 400), line.format(5, 600)]
    log = write_lines(tmp_path / "log", lines)
    assert training_log.read_training(log) == training_log.Training(1000, 600, *counted)


def test_a_reader_that_leaves_costs_no_file(outputs_of_three: Path, tmp_path: Path) -> None:
    """As `head` does, when it has the lines that it wants."""
    options = f"--keep-tokens --samples 100 --json {tmp_path}/c.json"
    command = f"{BIN}/fairseq-ext compare --system a=good --ref ref {options} | true"
    done = run("bash", "-c", command, cwd=outputs_of_three)
    assert "Traceback" not in done.stderr
    assert read_json(tmp_path / "c.json")["sentences"]


def test_systems_with_a_point_are_named_in_the_picture(outputs_of_three, figures, tmp_path):
    long_name = "a long name " * 6
    systems = [f"{long_name}=good", "_text=text:good.txt"]
    for words, expected in ((systems, [long_name]), (systems[1:], ["_text"])):
        compare_report.plot(compared(outputs_of_three, *words), tmp_path / "x")
        figure = figures[-1]
        figure.draw_without_rendering()
        (legend,) = figure.legends
        shown = [" ".join(text.get_text().split()) for text in legend.get_texts()]
        assert shown == [name.strip() for name in expected]
        box = legend.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.axes[0].get_window_extent().height > 2 * figure.dpi


def test_a_page_shows_text_as_it_is(outputs_of_three: Path) -> None:
    result = compared(outputs_of_three, "a_b=text:good.txt")
    sample = compare.Sample(7, None, "a | b", {"a_b": "<unk> *x* [y] $5"})
    changed = dataclasses.replace(result, samples=[sample], sentences=1)
    page = compare_report.as_page(changed, Path("to/page.md"), [Path("to/a picture.png")])
    assert "- 1 sentence, too few for an interval" in page
    assert page.startswith("# 1 system on ref\n\n| system |")
    assert "| a\\_b | " in page.partition("## Samples")[0]
    assert "![a picture](a%20picture.png)" in page
    assert page.endswith(
        "| sentence 7 |  |\n|---|---|\n| reference | a \\| b |\n"
        r"| a\_b | &lt;unk&gt; \*x\* \[y\] <span>\$</span>5 |"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--system a=good --system a=bad", "Names of `--system` must differ, but `a`"),
        ("--system a=good --baseline b", "`--baseline` must be one of a, but is `b`"),
        ("--system a=good --samples 9", "`--samples` must be at least 100, but is 9"),
        ("--system a=good -o new.pdf", "a name that ends in .png, such as new.png"),
        ("--system a=good -o no/new", "`--output no/new`: /"),
        ("--system a=good --json no/x", "`--json no/x`: /"),
        ("--system a=good --json ref/x", "ref is not a folder. Make it"),
        ("--system a=good,./good", "`--system a=…` names good twice; each run needs"),
        ("--system a=text:good.txt,good.txt", "names good.txt twice"),
        (
            "--system a=text:good.txt --detokenize de",
            "`--detokenize` has no effect on text:FILE, which is text; leave it out.",
        ),
        ("--system a=good --pictures none.png", "picture none.png does not exist"),
        ("--system a=none", "`none` does not exist"),
        (
            "--system a=ref",
            "If the file is plain text, give it to `score` as `--hyp`, to `compare` as ",
        ),
        ("--system a=good --ref blank", "`blank` has no words; give the reference"),
        ("--system a=good --training empty", "empty is empty; it needs at least"),
        ("--system a=good,checkpoint=ref", "ref is not a checkpoint"),
        ("--system a=good,log=ref", "`ref`: the training log holds no finished epoch"),
        ("--system a=good --tokenized-ref short", "`a` has 60 lines, but `short` has 2"),
    ],
)
def test_errors_are_one_line(outputs_of_three, words, message):
    write_lines(outputs_of_three / "short", ["a", "b"])
    write_lines(outputs_of_three / "blank", [""] * 60)
    write_lines(outputs_of_three / "empty", [])
    reference = [] if "--ref" in words else ["--ref", "ref"]
    words = (*reference, "-o", "new", "--json", "other.json", *words.split())
    leaves_no_trace(outputs_of_three, message, "compare", *words)


@pytest.mark.parametrize("seed", ["abc", "-1", "", "1.5"])
@pytest.mark.parametrize("runs", ["good", "good,bad"])
def test_seeds_that_are_no_numbers(outputs_of_three, runs, seed, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    with pytest.raises(ConfigError, match="`SACREBLEU_SEED` must be a whole number from 0 on"):
        compared(outputs_of_three, f"one={runs}")


@pytest.fixture(scope="module")
def translated(copy_data: Path, unsure_model: Path, tmp_path_factory) -> Path:
    """A folder with what a model prints for the test set, and the reference."""
    folder = tmp_path_factory.mktemp("translated")
    done = fairseq("generate", copy_data, "--path", unsure_model, "--max-tokens", "900")
    (folder / "out").write_text(done.stdout, encoding="utf-8")
    (folder / "out.log").write_text(done.stderr, encoding="utf-8")
    shutil.copy(copy_data.parent / "text" / "test.tgt", folder / "ref")
    return folder


def test_energy_is_that_of_all_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter of a package begins at 0 again at the end of its range."""
    monkeypatch.setattr(latency, "POWERCAP", tmp_path)
    before = latency.read_energy()
    assert (before, latency.energy_since(before)) == ({}, None)
    for zone, name in (("0", "package-0"), ("0:0", "core"), ("1", "package-1"), ("2", "psys")):
        folder = tmp_path / f"intel-rapl:{zone}"
        folder.mkdir()
        for part, content in (("name", name), ("energy_uj", 900), ("max_energy_range_uj", 1000)):
            (folder / part).write_text(f"{content}\n")
    before = latency.read_energy()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("950\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("100\n")
    assert latency.energy_since(before) == pytest.approx((50 + 200) / 1e6)


def lines_of(path: Path, letter: str) -> list[str]:
    """The lines of one kind that fairseq-generate printed, in corpus order."""
    lines = [line for line in outputs.read_lines(path) if re.match(rf"{letter}-\d+\t", line)]
    return sorted(lines, key=lambda line: int(re.search(r"\d+", line)[0]))


def test_the_command_writes_table_markdown_json_and_pictures(
    translated: Path, unsure_model: Path
) -> None:
    generated(translated / "other", damaged(outputs.read_lines(translated / "ref"), 0.3, 1), "77")
    (translated / "curves.png").touch()
    sources = [line.split("\t")[1] for line in lines_of(translated / "out", "S")]
    write_lines(translated / "words", ["", *sources])
    log = unsure_model.with_name("train.log")
    done = run(
        *("fairseq-ext", "compare", "--ref", "ref", "--baseline", "other", "-o", "both"),
        *("--system", f"gru=out,checkpoint={unsure_model},log={log}"),
        *("--system", "other=other", "--samples", "100", "--json", "copy.json"),
        *("--pictures", "curves.png", "--latency", "3", "--source", "words"),
        cwd=translated,
    )
    assert done.stdout.startswith("system  BLEU")
    ends = (".md", ".csv", ".tex", ".html", ".png", ".json", "-differences.png", ".tsv.gz")
    assert done.stdout.endswith("\n" + "".join(f"both{end}\n" for end in ends))
    assert "DEBUG" not in done.stderr
    assert "\r" not in done.stderr  # no bar where nobody watches
    data = read_json(translated / "both.json")
    assert data == read_json(translated / "copy.json")
    first, second = data["systems"]
    parameters = re.search(r"num\. shared model params: ([\d,]+)", log.read_text("utf-8"))[1]
    assert first["parameters"] == int(parameters.replace(",", ""))
    assert first["tensor_bytes"] >= 4 * first["parameters"]
    assert (first["architecture"], first["updates"]) == ("gru_tiny", 25)
    assert first["generation_speed"] > 0
    figures = first["latency"]  # the empty line is not counted; only a bundle has a program
    assert figures["sentences"] == 2
    assert 0 < figures["median"] <= figures["p99"]
    assert figures["processor"] > 0
    assert figures["multiply_adds"] is second["latency"] is None
    in_one_file = (translated / "both.html").read_text(encoding="utf-8")
    assert in_one_file.count('src="data:image/png;base64,') == 3
    assert "http" not in in_one_file
    assert second["parameters"] is second["training_speed"] is second["updates"] is None
    page = outputs.read_lines(translated / "both.md")
    assert page[0] == "# 2 systems on ref"
    assert page[2].startswith("| system | BLEU | p (BLEU) | chrF | p (chrF) | parameters |")
    assert f"| {parameters} |" in page[4]
    assert page[5].startswith("| other |")
    linked = re.findall(r"\]\(([^)]+)\)", "\n".join(page))
    assert linked == ["both.png", "both-differences.png", "curves.png"]
    reference = outputs.read_lines(translated / "ref")
    assert len(data["samples"]) == 5
    for sample in data["samples"]:
        line = sample["number"] - 1
        assert (sample["reference"], sample["source"]) == (reference[line], sources[line])
        assert f"| sentence {line + 1} |  |" in page
        assert f"| other | {sample['translations']['other']} |" in page
    assert (translated / "both.png").read_bytes().startswith(b"\x89PNG")
    assert not (translated / "both.svg").exists()


# p of ``fairseq-ext compare``: samples, definitions, several runs, and how often it errs
def test_scores_and_samples_are_sacrebleus() -> None:
    text = sentences()
    systems = {name: damaged(text, 0.3, seed) for seed, name in enumerate(("a", "b"))}
    runs = {name: [lines] for name, lines in systems.items()}
    ours = bootstrap(runs, build_metrics(text, extra_metrics=["chrf++", "ter"]), "a")
    metrics = {"BLEU": BLEU(), "chrF": CHRF(), "chrF++": CHRF(word_order=2), "TER": TER()}
    for label, metric in metrics.items():
        test = PairedTest([*systems.items()], {"x": metric}, [text], test_type="bs", n_jobs=1)
        (theirs,) = (results for key, results in test()[1].items() if key != "System")
        for name, their in zip(systems, theirs, strict=True):
            estimate = ours[name][label]
            expected = their.score, their.mean - their.ci, their.mean + their.ci
            actual = estimate.value, estimate.low, estimate.high
            assert actual == pytest.approx(expected, abs=1e-12), label


def resampled(text: list[str], systems: dict[str, list[list[str]]], samples: int) -> dict[str, Any]:
    """BLEU by sacrebleu of each run of each system: of all lines, then of each sample."""
    rows = np.random.default_rng(12345).choice(len(text), size=(samples, len(text)), replace=True)

    def bleu(lines: list[str], places: Sequence[int]) -> float:
        drawn = [text[i] for i in places]
        return sacrebleu.corpus_bleu([lines[i] for i in places], [drawn]).score

    samples_with_all = [range(len(text)), *rows]
    return {
        name: np.array([[bleu(run, places) for run in runs] for places in samples_with_all])
        for name, runs in systems.items()
    }


def test_p_from_its_definition() -> None:
    """Each sample scored as a text of its own; differences counted in both directions."""
    text = sentences(40)
    runs = {name: [damaged(text, share, 3)] for name, share in (("a", 0.2), ("b", 0.25))}
    draw = np.random.default_rng(7)
    gains = {"a": 0, "b": -0.02}
    neural = {name: [draw.normal(gain, 0.1, 40).tolist()] for name, gain in gains.items()}
    estimates = bootstrap(runs, build_metrics(text), "a", 200, segments={"COMET": neural})
    rows = [range(40), *np.random.default_rng(12345).choice(40, size=(200, 40), replace=True)]
    means = {
        name: np.array(values)[0][np.array(rows)].mean(axis=1) for name, values in neural.items()
    }
    bleu = resampled(text, runs, 200)
    for metric, scores in {"BLEU": {n: s[:, 0] for n, s in bleu.items()}, "COMET": means}.items():
        measured, *rest = scores["b"] - scores["a"]
        centred = np.array(rest) - statistics.fmean(rest)
        larger = sum(centred > abs(measured)) + sum(centred < -abs(measured))
        estimate = estimates["b"][metric]
        assert estimate.value == pytest.approx(scores["b"][0]), metric
        assert estimate.p == (larger + 1) / 201, metric
        assert 0.05 < estimate.p < 0.95, metric
        low, high = np.percentile(scores["b"][1:], (2.5, 97.5))
        assert estimate.half_width == pytest.approx((high - low) / 2, rel=0.1), metric


def test_equally_good_systems_differ_significantly_in_five_of_a_hundred_cases() -> None:
    """sacrebleu's p would be below 0.05 in some ten."""
    draw = np.random.default_rng(1)
    count, below = 2000, 0
    for _ in range(count):
        gains = draw.normal(size=100)  # of one system over the other, in each sentence
        samples = gains[draw.integers(100, size=(200, 100))].mean(axis=1)
        below += bootstrap_p(samples, gains.mean()) < 0.05
    assert 0.035 < below / count < 0.07


def test_p_over_trainings_from_its_definition() -> None:
    """Student's where sentences do not matter, normal where seeds do not, between them else."""
    seeds, sentences_only = Variances(0, 0.2, 0.1, 0.5, 4), Variances(0.3, 0, 0, 0.5, 4)
    assert seeds.p_value(0.6) == pytest.approx(2 * stats.t.sf(0.6 / 0.1**0.5, 4))
    assert sentences_only.p_value(-0.6) == pytest.approx(2 * stats.norm.sf(0.6 / 0.3**0.5))
    variances = Variances(0.3, 0.2, 0.1, 0.5, 4)
    assert variances.p_value(variances.half_width()) == pytest.approx(0.05)
    assert variances.p_value(0) == 1
    p = variances.p_value(1.1)
    tails = stats.norm.isf(p / 2) ** 2 * 0.3, stats.t.isf(p / 2, 4) ** 2 * 0.1
    assert sum(tails) == pytest.approx(1.1**2)
    assert 0 <= variances.p_value(1e6) < 1e-6


def test_holm_steps_down() -> None:
    p = {"a": 0.01, "b": None, "c": 0.04, "d": 0.03, "e": 0.005}
    corrected = {"a": 0.03, "b": None, "c": 0.06, "d": 0.06, "e": 0.02}
    assert significance.holm(p) == pytest.approx(corrected)
    assert significance.holm({"a": 0.7, "b": 0.9}) == pytest.approx({"a": 1.0, "b": 1.0})


@pytest.mark.parametrize(("left", "right"), [(2, 1), (2, 2), (3, 3), (5, 1)])
@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_errors_and_power_over_trainings(left: int, right: int, gain: float) -> None:
    """p < 0.05 in at most 6 % of cases without a difference, in 80 % with a detectable one."""
    draw = np.random.default_rng(5)
    count, shared, noise, seeds = 4000, 0.01, 0.1, 0.05
    weight, freedom = 1 / left + 1 / right, left + right - 2
    truth = Variances(shared, seeds + noise, noise, weight, freedom)
    scores = draw.normal(0, math.sqrt(seeds + noise), (count, left + right))
    ours, baselines = scores[:, :left], scores[:, left:]
    chance = draw.normal(0, math.sqrt(shared), count)
    shift = gain * truth.detectable()
    differences = ours.mean(axis=1) - baselines.mean(axis=1) + chance + shift
    squares = left * ours.var(axis=1) + right * baselines.var(axis=1)
    below = [
        abs(difference) > Variances(shared, square / freedom, noise, weight, freedom).half_width()
        for difference, square in zip(differences, squares, strict=True)
    ]
    if gain:
        assert statistics.fmean(below) == pytest.approx(0.8, abs=0.03)
    else:
        assert 0.03 < statistics.fmean(below) < 0.06


def test_the_runs_and_sentences_that_a_difference_needs() -> None:
    """So many show it in four of five repetitions, and fewer do not."""
    variances = Variances(0.01, 0.15, 0.1, 2 / 3, 4)
    runs = significance._runs_needed(variances, 0.6)
    detectable = [variances.with_runs(count).detectable() for count in (runs, runs - 1)]
    assert detectable[0] <= 0.6 < detectable[1]
    assert significance._runs_needed(variances, 0.2) is None
    needed = significance._sentences_needed(variances, 1.0, 1000)
    assert variances.with_sentences(needed / 1000).detectable() == pytest.approx(1.0, abs=0.01)
    assert significance._sentences_needed(variances, 0.2, 1000) is None  # seeds alone vary too much


def test_a_second_run_of_one_system_changes_no_other_p():
    text = sentences()
    systems = {name: [damaged(text, share, 3)] for name, share in (("a", 0.2), ("b", 0.22))}
    alone = bootstrap(systems, build_metrics(text), "a")["b"]["BLEU"]
    three = systems | {"c": [damaged(text, 0.3, seed) for seed in (1, 2)]}
    beside = bootstrap(three, build_metrics(text), "a")["b"]["BLEU"]
    assert (beside.p, beside.difference) == (alone.p, alone.difference)
    assert alone.difference.test == significance.SENTENCES
    assert alone.difference.runs_needed is None
    assert beside.p_holm >= alone.p_holm == alone.p


def test_variances_against_loops_over_text():
    """Each sample's score from sacrebleu, given the very sentences that were drawn."""
    text, samples = sentences(40), 100
    systems = {
        "a": [damaged(text, 0.2, seed) for seed in (1, 2, 3)],
        "b": [damaged(text, 0.3, seed) for seed in (4, 5)],
    }
    estimates = bootstrap(systems, build_metrics(text), "a", samples)
    scores = resampled(text, systems, samples)
    sampled = {name: values[1:] for name, values in scores.items()}
    scores = {name: [*values[0]] for name, values in scores.items()}
    means = {name: statistics.fmean(values) for name, values in scores.items()}
    for name, estimate in ((name, estimates[name]["BLEU"]) for name in systems):
        assert estimate.value == pytest.approx(means[name])
        assert estimate.deviation == pytest.approx(statistics.stdev(scores[name]))
    pairs = [(sampled["a"], i, j) for i, j in ((0, 1), (0, 2), (1, 2))]
    noise_of_a = statistics.fmean(np.var(x[:, i] - x[:, j], ddof=1) / 2 for x, i, j in pairs)
    noise_of_b = np.var(sampled["b"][:, 0] - sampled["b"][:, 1], ddof=1) / 2
    noise = (2 * noise_of_a + noise_of_b) / 3
    seeds = (2 * statistics.variance(scores["a"]) + statistics.variance(scores["b"])) / 3
    weight = 1 / 3 + 1 / 2
    by_sentences = np.var(sampled["b"].mean(axis=1) - sampled["a"].mean(axis=1), ddof=1)
    shared = max(0, by_sentences - weight * noise)
    half = math.sqrt(1.959964**2 * shared + stats.t.ppf(0.975, 3) ** 2 * weight * seeds)
    difference = estimates["b"]["BLEU"].difference
    assert difference.value == pytest.approx(means["b"] - means["a"])
    assert difference.high - difference.value == pytest.approx(half)
    assert difference.value - difference.low == pytest.approx(half)
    assert difference.test == significance.TRAININGS
    p = Variances(shared, seeds, noise, weight, 3).p_value(difference.value)
    assert estimates["b"]["BLEU"].p == pytest.approx(p, rel=1e-5)
    equal = {"a": systems["a"], "b": [systems["b"][0]] * 2}  # runs that do not vary
    assert bootstrap(equal, build_metrics(text), "a", samples)["b"]["BLEU"].deviation == 0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_intervals_are_students_where_sentences_say_nothing(count: int):
    runs = [[float(number)] * 40 for number in range(count)]
    systems = {"a": [["x"] * 40] * count, "b": [["x"] * 40]}
    segments = {"x": {"a": runs, "b": [[0.0] * 40]}}
    result = bootstrap(systems, {}, "b", samples=100, segments=segments)
    estimate, spread = result["a"]["x"], statistics.stdev(range(count)) / count**0.5
    assert estimate.half_width == pytest.approx(stats.t.ppf(0.975, count - 1) * spread)


def test_too_few_sentences_give_no_p():
    for runs in (1, 2):
        text = sentences(29)
        systems = {name: [damaged(text, 0.3, seed) for seed in range(runs)] for name in "ab"}
        systems["b"] = [damaged(text, 0.9, 7)]
        estimate = bootstrap(systems, build_metrics(text), "a", 100)["b"]["BLEU"]
        assert (estimate.p, estimate.p_holm, estimate.difference.low) == (None, None, None)
        assert estimate.difference.value < 0
        single = {name: [["a b c"]] * runs for name in "ab"}
        estimate = bootstrap(single, build_metrics(["a b d"]), "a", 100)["b"]["BLEU"]
        assert (estimate.low, estimate.high, estimate.half_width) == (None, None, None)


def test_the_command_writes_means_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = sentences()
    write_lines(tmp_path / "ref", text)
    for name, share, seed in (("a", 0.2, 1), ("b", 0.25, 2), ("c", 0.5, 3)):
        write_lines(tmp_path / name, damaged(text, share, seed))
    monkeypatch.chdir(tmp_path)
    systems = ("--system", "two_runs=text:a,b", "--system", "one=text:c")
    shown = command("compare", *systems, "--ref", "ref", "--samples", 200, "-o", "out")
    (meaning,) = read_json(tmp_path / "out.json")["tests"].values()
    assert meaning.startswith("another test set and other trainings")
    assert f"p is about {meaning}" in shown
    assert "assumed to vary over seeds as much as the other system of the comparison" in shown
    with (tmp_path / "out.csv").open(newline="") as file:
        heading, first, second = csv.reader(file)
    row, other = dict(zip(heading, first, strict=True)), dict(zip(heading, second, strict=True))
    runs = [outputs.read_lines(tmp_path / name) for name in ("a", "b")]
    bleu = [sacrebleu.corpus_bleu(lines, [text]).score for lines in runs]
    numbers = [f"BLEU {name}" for name in ("95% low", "95% high", "SD", "p", "p Holm")]
    assert heading[:8] == ["system", "runs", "BLEU", *numbers]
    assert float(row["BLEU"]) == pytest.approx(statistics.fmean(bleu))
    assert float(row["BLEU SD"]) == pytest.approx(statistics.stdev(bleu))
    assert float(row["BLEU 95% low"]) < float(row["BLEU"]) < float(row["BLEU 95% high"])
    assert (row["runs"], other["runs"], other["BLEU SD"], row["BLEU p"]) == ("2", "1", "", "")
    assert 0.05 < float(other["BLEU p"]) < 1  # one degree of freedom, seeds that differ
    ends = [float(other[f"BLEU difference{end}"]) for end in (" 95% low", "", " 95% high")]
    assert ends == sorted(ends)
    assert ends[0] < 0 < ends[2]
    latex = (tmp_path / "out.tex").read_text()
    assert r"two\_runs" in latex
    assert [line.count("&") for line in latex.splitlines() if line.startswith("two")] == [5]
    assert all((tmp_path / f"out.{ending}").is_file() for ending in ("md", "png", "json"))
    assert (tmp_path / "out-differences.png").read_bytes().startswith(b"\x89PNG")
    assert "## Differences to two\\_runs" in (tmp_path / "out.md").read_text()


def test_columns_stay_aligned_beside_letters_of_two_columns_or_none():
    lines = aligned([["日本", "1"], ["abcd", "2"], ["e\u0301", "3"]]).split("\n")
    assert lines == ["日本  1", "abcd  2", "e\u0301     3"]


def test_latex_shows_every_character():
    table = latex([["a&b", "of 50%"], ["x_{1}^~", "\\±–"], ["<unk>", "a|b"]])
    assert r"a\&b & \shortstack[r]{of\\50\%} \\" in table
    assert r"\textless{}unk\textgreater{} & a\textbar{}b \\" in table
    assert "\n{}[a] \\\\\n{}* \\\\\n" in latex([["x"], ["[a]"], ["*"]])
    assert r"x\_\{1\}\textasciicircum{}\textasciitilde{} & \textbackslash{}$\pm$-- \\" in table
