"""The Linformer paper's recipes: translation, and classification of sentences."""

import json
import math
import random
import re
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import classify_data
import classify_scores
import pytest
import table3
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

from fairseq_ext.generation.translation_ext import TranslationExtTask
from fairseq_ext.text import pipeline
from fairseq_ext.utils.errors import DataError
from tests.support.harness import REPO, fairseq, read_lines, run, write_lines, write_sides
from tests.support.models import build, configuration, count
from tests.support.recipes import (
    RECIPES,
    Command,
    bash,
    check_pictures,
    check_repeat,
    dry_run,
    library,
)

RECIPE = RECIPES / "linformer" / "wmt14_en_de.sh"
RATES = (1e-7, 1e-4, 1e-6)  # the paper's, sections 5
PAPER_PAIRS = 2_231_849  # half of the 4,508,785 training rows, less 1 %


def schedule(pairs: int, batch_size: int, epochs: int, warmup: int) -> Command:
    """Return the flags of the recipe's schedule with the paper's rates."""
    words = f"cosine_schedule {pairs} {batch_size} {epochs} {warmup} {' '.join(map(str, RATES))}"
    return Command(library(words).stdout.split())


WORDS = ("--task", "translation_ext", "--arch", "transformer_tiny", "--optimizer", "adam")


@pytest.mark.parametrize("batch_size", [1, 8, 33, 88, 125, 499, 500, 501])
def test_updates_are_counted_as_fairseq_makes_them(copy_data: Path, batch_size: int) -> None:
    cfg = configuration([*WORDS, "--random-batches", "--batch-size", str(batch_size)])
    cfg.task.data = str(copy_data)
    task = TranslationExtTask.setup_task(cfg.task)
    task.load_dataset("train")
    batches = task.get_batch_iterator(
        task.dataset("train"),
        max_sentences=cfg.dataset.batch_size,
        max_positions=(1024, 1024),
        required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
    )
    update_count = sum(len(batches.next_epoch_itr()) for _ in range(3))
    flags = schedule(500, batch_size, epochs=3, warmup=0)
    assert flags.value("--lr-period-updates") == str(update_count)


@pytest.mark.parametrize(("total", "warmup"), [(253_620, 4000), (4001, 4000), (28, 8), (5, 0)])
def test_the_cosine_ends_low_and_stays_there(total: int, warmup: int) -> None:
    init, top, bottom = RATES
    flags = Command([*WORDS, *schedule(total, 1, 1, warmup)])
    rising = {0, 1, warmup // 2, warmup - 1} & set(range(warmup))
    last = range(max(warmup, total - 999), total + 1)
    falling = sorted({*range(warmup, total, max(1, total // 999)), *last})
    later = range(total, total + min(total, 999) + 1)
    rates = flags.learning_rates([*rising, *falling, *later])
    for update in rising:
        expected = init + (top - init) * update / warmup
        assert rates[update] == pytest.approx(expected, rel=1e-9)
    assert rates[warmup] == top
    for update in falling:
        angle = math.pi * (update - warmup) / (total - warmup)
        expected = bottom + (top - bottom) * (1 + math.cos(angle)) / 2
        assert rates[update] == pytest.approx(expected, rel=1e-9)
    assert all(rates[new] <= rates[old] * (1 + 1e-12) for old, new in pairwise(falling))
    assert bottom <= rates[total] <= 1.01e-6
    assert max(rates[update] for update in later) <= rates[total]


def test_without_our_shrink_factor_fairseq_jumps_back_at_the_end() -> None:
    """Without the shrink factor, the test above would fail."""
    flags = schedule(1000, 1, 1, 100)
    stock = Command([*WORDS, *flags[: flags.index("--lr-shrink")]]).learning_rates([999, 1000])
    assert stock[1000] == pytest.approx(1e-5)
    assert stock[999] < 1.01e-6


def test_the_schedule_is_as_long_as_the_papers_and_longer_than_its_warm_up() -> None:
    flags = schedule(PAPER_PAIRS, 88, 10, 4000)
    assert int(flags.value("--lr-period-updates")) == 253_620 - 4000
    refusal = library("cosine_schedule 500 88 10 60 1e-7 1e-4 1e-6", ok=False).stderr
    assert "`--warmup` must be less than the 60 updates of the run, but is 60." in refusal


LOG = """\
2026 | INFO | fairseq_cli.validate | loading model(s) from x
2026 | INFO | valid | valid on 'test' subset | loss 1.986 | ppl 3.96 | wps 0 | wpb 9 | bsz 9
"""


def test_perplexity_is_read_from_one_line(tmp_path: Path) -> None:
    log, out = tmp_path / "validate.log", tmp_path / "perplexity.json"
    for text in (LOG, LOG.replace("| ppl", "| nll_loss 1 | ppl")):
        log.write_text(text)
        table3.write_perplexity(log, out)
        (score,) = json.loads(out.read_text())["scores"]
        assert (score["value"], score["detail"]) == (3.96, "loss 1.986 bits per token")
    for text in ("", LOG + LOG):
        log.write_text(text)
        with pytest.raises(ValueError, match="one line with `loss` and `ppl`"):
            table3.write_perplexity(log, out)


def test_the_table_shows_runs_before_the_papers_figures(tmp_path: Path) -> None:
    for name, bleu in (("a", 1), ("b", 2)):
        scores = [{"name": "PPL", "value": 9}, {"name": "BLEU", "value": bleu}]
        write_lines(tmp_path / name / "results.json", [json.dumps({"scores": scores})])
        write_lines(tmp_path / name / "model.txt", [f"model {name}"])
    command = (sys.executable, RECIPES / "linformer" / "table3.py", "table", tmp_path / "a")
    rows = run(*command, tmp_path / "b", "--out", tmp_path).stdout.splitlines()
    assert [row.split()[-2:] for row in rows[1:3]] == [["9.00", "1.00"], ["9.00", "2.00"]]
    assert rows[4] == "paper: Linformer (k=32)  3.96        30.08"
    figures = json.loads((tmp_path / "table3.json").read_text())
    assert figures[1] == {"model": "model b", "ppl_test": 9, "bleu_test": 2}
    assert (tmp_path / "table3.md").read_text().startswith("| Model | PPL (test) | BLEU (test) |\n")
    assert run(*command, tmp_path / "c", "--out", tmp_path, ok=False).stderr.startswith("table3:")


def shown(tmp_path: Path, *options: str) -> dict[str, str]:
    """Return the commands of a dry run by their first words."""
    inputs = ("--data", REPO, "--download", tmp_path / "gpt2")
    word_lists = dry_run(RECIPE, tmp_path, *inputs, *options)
    assert list(tmp_path.iterdir()) == []
    return {words[0]: shlex.join(words) for words in word_lists}


def test_a_dry_run_has_the_papers_settings(tmp_path: Path) -> None:
    commands = shown(tmp_path, "--", "--dropout", "0.3")
    train = commands["fairseq-train"]
    for flags in (
        *("--arch linformer_wmt_en_de --linformer-k 32 --linformer-max-len 256",),
        *("--truncate-source --truncate-target --source-bos", "--random-batches"),
        *("--max-source-positions 256 --max-target-positions 256", "--batch-size 88"),
        *("--criterion cross_entropy", "--max-epoch 10", "--adam-betas"),
    ):
        assert flags in train
    assert train.endswith("--dropout 0.3")
    assert "--beam 1 --max-len-a 0 --max-len-b 255" in commands["fairseq-generate"]
    assert "--valid-subset test" in commands["fairseq-validate"]
    for command in ("train", "validate", "generate"):
        assert "--task translation_ext" in commands[f"fairseq-{command}"]


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        (["--arch", "transformer_wmt_en_de"], 69_877_760),
        ([], 69_877_760 + 12 * 2 * 32 * 256),
        (["--k", "64"], 69_877_760 + 12 * 2 * 64 * 256),
    ],
)
def test_the_flags_give_models_of_the_papers_size(tmp_path: Path, options, parameters) -> None:
    train = shown(tmp_path, *options)["fairseq-train"]
    assert ("linformer" in train) == ("--arch" not in options)  # none of the baseline's flags
    _, task, rest = train.partition("--task ")
    flags = [word for word in shlex.split(task + rest) if word != "<schedule.txt>"]
    model, _ = build([*flags, "--cpu"], size=50_272)
    assert count(model) == parameters
    # fairseq-generate takes one step less than that and then writes </s>.
    assert model.max_decoder_positions() == 256


def test_into_leaves_no_half_written_file(tmp_path: Path) -> None:
    library(f"cd {tmp_path}; into whole printf text; into half bash -c 'echo x; exit 3'", ok=False)
    assert (tmp_path / "whole").read_text() == "text"
    assert not (tmp_path / "half").exists()


def scores_of(generated: str) -> list[list[str]]:
    """Return the scores of the tokens of each sentence in ``fairseq-generate``'s output."""
    return [line.split() for line in re.findall(r"^P-\d+\t(.*)$", generated, re.MULTILINE)]


def test_the_papers_protocol_from_nothing_to_both_figures(tmp_path: Path) -> None:
    out = tmp_path / "my run"
    done = bash(RECIPE, "--out", out)
    results = json.loads((out / "results.json").read_bytes())
    pairs = len(read_lines(out / "bpe" / "train.en"))
    assert pairs == 297
    assert results["updates"] == 28
    assert min(results["stages"].values()) >= 0
    values = {score["name"]: score["value"] for score in results["scores"]}
    assert list(values)[:3] == ["PPL", "BLEU", "chrF"]
    table = json.loads((out / "table3.json").read_text())
    model = "linformer_tiny (k=8)"
    assert table[0] == {"model": model, "ppl_test": values["PPL"], "bleu_test": values["BLEU"]}
    assert done.stdout.splitlines()[-4].startswith(model)
    check_pictures(out, "curves")
    log = (out / "checkpoints" / "train.log").read_text()
    for setting in ("'random_batches': True", "'source_bos': True", "lr_shrink"):
        assert setting in log
    last = re.findall(r"epoch 002 \| loss .*", log)[-1]
    assert "num_updates 28 | lr 1e-06" in last

    scores = json.loads((out / "perplexity.json").read_text())["scores"]
    reference = fairseq(
        *("generate", out / "bin", "--path", out / "checkpoints" / "checkpoint_best.pt"),
        *("--gen-subset", "test", "--batch-size", 7, "--score-reference"),
        *("--max-source-positions", 256, "--max-target-positions", 256),
        *("--task", "translation_ext", "--truncate-source", "--truncate-target", "--source-bos"),
    )
    tokens = [float(score) for line in scores_of(reference.stdout) for score in line]
    assert scores[0]["value"] == pytest.approx(2 ** -(sum(tokens) / len(tokens)), rel=2e-3)
    generated = scores_of((out / "generated.txt").read_text())
    assert len(generated) == 20
    assert max(map(len, generated)) <= 256
    decode = pipeline.load(out / "bpe").decoder("de")
    text = [decode(line) for line in read_lines(out / "bpe" / "test.de")]
    assert text == read_lines(out / "text" / "test.de")
    check_repeat(done, RECIPE, "--out", out)


# The recipe for sentence classification: its checks, its figures, and two whole runs
FOLDER = REPO / "recipes" / "linformer"
CLASSIFIER = FOLDER / "classify.sh"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with three sentences in each split."""
    texts = {"text": ["a b", "c d", "e"], "label": ["x", "y", "x"]}
    return write_sides(tmp_path / "data", texts)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("valid.label", ["x"], r"valid\.text has 3 lines but .*valid\.label has 1"),
        ("train.label", ["x", "", "y"], r"train\.label, line 2: empty"),
        ("test.text", ["a", "b", " "], r"test\.text, line 3: empty"),
        ("test.label", ["x", "y", "z"], r"test\.label, line 3: the label `z` does not .* x, y\."),
        ("valid.label", ["new", "y", "x"], r"valid\.label, line 1: the label `new` does not"),
        ("train.label", ["x", "sci fi", "y"], r"train\.label, line 2: the label `sci fi` must"),
        ("train.label", ["x", "y", "<unk>"], r"train\.label, line 3: .* not be `<unk>`"),
        ("train.text", ["a", "b\rb", "c"], r"train\.text, line 2: carriage return"),
        ("valid.text", None, r"valid\.text"),
    ],
)
def test_a_corpus_that_cannot_work_is_refused(name, lines, message, corpus):
    (corpus / name).unlink() if lines is None else write_lines(corpus / name, lines)
    with pytest.raises(DataError, match=message):
        classify_data.read_corpus(corpus)


def test_a_corpus_is_copied_line_by_line(corpus: Path, tmp_path: Path) -> None:
    text = ["Hi,\u0085 you", "It's\u2028so", "Grüße "]
    write_lines(corpus / "train.text", text)
    write_lines(corpus / "train.label", [" x", "y\r", "x "])
    classify_data.write_all(tmp_path / "copy", classify_data.read_corpus(corpus))
    assert read_lines(tmp_path / "copy" / "train.text") == text
    assert (tmp_path / "copy" / "train.label").read_text() == "x\ny\nx\n"
    assert len(list((tmp_path / "copy").iterdir())) == 6


def test_marks_are_the_classes_of_a_translation_corpus(tmp_path: Path) -> None:
    lines = ["¿Qué sabes?", "Ve.", "Ve!", "¡Corre !", "Sí. No.", "…", "Dice: «¿Sí?»", "Sin punto"]
    write_lines(tmp_path / "train.es", lines)
    write_lines(tmp_path / "valid.es", ["¿Ve?", "Hola, Tom."])
    write_lines(tmp_path / "test.es", ["Hola, Tom!", "¡ Qué día!"])
    assert classify_data.read_marks(tmp_path, "es") == {
        "train.text": ["Qué sabes", "Ve", "Corre"],
        "train.label": ["question", "statement", "exclamation"],
        "valid.text": ["Hola, Tom"],
        "valid.label": ["statement"],
        "test.text": ["Qué día"],
        "test.label": ["exclamation"],
    }


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (["Sin punto"], r"test\.es` must have sentences that end in \. \? or !, but has none"),
        (["¡Ya!"], r"test\.label, line 1: the label `exclamation` does not occur"),
        ([""], r"test\.es, line 1: empty"),
        (None, r"test\.es` must be a file with sentences in `es`, but is not"),
    ],
)
def test_marks_that_cannot_work_are_refused(tmp_path, test, message):
    for split, lines in {"train": ["Ve.", "¿Sí?"], "valid": ["Va."], "test": test}.items():
        if lines is not None:
            write_lines(tmp_path / f"{split}.es", lines)
    with pytest.raises(DataError, match=message):
        classify_data.read_marks(tmp_path, "es")


def test_figures_are_those_of_sklearn() -> None:
    generator = random.Random(3)
    truth = [generator.choice("aaabbc") for _ in range(97)]
    guesses = [generator.choice("abd") for _ in truth]  # c is never guessed, d does not exist
    figures = classify_scores.score(truth, guesses)
    expected = precision_recall_fscore_support(truth, guesses, zero_division=0)
    assert [figures["classes"][label]["lines"] for label in "abcd"] == list(expected[3])
    assert figures["macro_f1"] == pytest.approx(100 * expected[2].mean())
    assert figures["accuracy"] == pytest.approx(100 * accuracy_score(truth, guesses))
    assert figures["largest_class"] == pytest.approx(100 * truth.count("a") / 97)


def test_the_interval_is_wilsons() -> None:
    """81 of 263 is the example of Newcombe (1998), Table I, method 3."""
    figures = classify_scores.score(["a"] * 263, ["a"] * 81 + ["b"] * 182)
    assert figures["interval"] == pytest.approx((25.53, 36.62), abs=0.005)


def test_a_dry_run_prints_every_command_and_does_nothing(corpus: Path, tmp_path: Path) -> None:
    options = (corpus, "--arch", "transformer_encoder", "--", "--lr", "1")
    shown = dry_run(CLASSIFIER, tmp_path, *options)
    commands = [words for words in shown if words[0].startswith("fairseq-")]
    names = [words[0] for words in commands]
    assert names == ["fairseq-preprocess", "fairseq-preprocess", "fairseq-train"]
    assert commands[2][-2:] == ["--lr", "1"]
    assert "--linformer" not in " ".join(commands[2])
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_from_lines_and_labels_to_a_table_and_beside_the_exact_twin(tmp_path: Path) -> None:
    linformer, exact = tmp_path / "linformer", tmp_path / "exact"
    output = bash(CLASSIFIER, "--out", linformer).stdout
    results = json.loads((linformer / "results.json").read_text())
    guesses = read_lines(linformer / "predicted.label")
    truth = read_lines(linformer / "text" / "test.label")
    assert len(guesses) == len(truth) > 190  # of 200 sentences: some are left out, see read_marks
    assert results["accuracy"] == pytest.approx(100 * accuracy_score(truth, guesses))
    assert results["accuracy"] > 90
    assert f"accuracy       {results['accuracy']:.2f} " in output
    assert output.splitlines()[-1].startswith(f"Everything is in {linformer}")
    assert "train: done before" in bash(CLASSIFIER, "--out", linformer).stderr

    # the same sentences as a user's own, cut to a few words so that some do not fit
    options = ("--arch", "transformer_encoder_tiny", "--words", "--max-len", "4", "--out", exact)
    bash(CLASSIFIER, linformer / "text", *options, "--max-epoch", "1", SMOKE="0")
    table = bash("-c", f'python "{FOLDER}/classify_scores.py" compare "{linformer}" "{exact}"')
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["run", "linformer", "exact"]

    # a report whose predictions are not those of the model is refused
    shutil.copytree(exact, tmp_path / "other")
    script = f'python "{FOLDER}/classify_scores.py" report --dir "{tmp_path}/other" --title t'
    write_lines(tmp_path / "other" / "predicted.label", ["statement"])
    assert "must have a line for each of" in bash("-c", script, ok=False).stderr
