"""The BMT paper's recipes: settings, ablations, scaling law, and whole runs."""

import json
import math
import re
import sys
from itertools import pairwise
from pathlib import Path

import ablations
import pytest
import scaling_losses

from fairseq_ext.binary.scaling_law import read_table
from fairseq_ext.binary.switches import PRESETS
from tests.support.harness import fairseq, run, write_lines
from tests.support.models import build
from tests.support.recipes import RECIPES, bash, check_pictures, check_repeat, dry_run

WMT, ABLATIONS = RECIPES / "bmt" / "wmt17_de_en.sh", RECIPES / "bmt" / "ablations.sh"
TABLE1 = RECIPES / "bmt" / "table1.sh"
CORPUS, LAST = ("my", "src", "tgt"), "checkpoint_last.pt"


def test_dry_run_has_the_papers_settings(tmp_path: Path) -> None:
    word_lists = dry_run(WMT, tmp_path)
    (train,) = word_lists.trainings().values()
    cfg = train.settings()
    for side in ("encoder", "decoder"):
        names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
        assert [cfg.model[f"{side}_{name}"] for name in names] == [6, 1024, 4096, 16]
    assert cfg.model.share_all_embeddings
    assert (cfg.model.dropout, cfg.model.attention_dropout) == (0.1, 0.1)
    assert cfg.dataset.batch_size * cfg.optimization.update_freq[0] == 1024
    assert cfg.dataset.max_tokens is None
    assert cfg.optimization.max_update == 50_000 + 2 * 88_339
    assert cfg.optimization.lr == [0.001]
    assert (eval(cfg.optimizer.adam_betas), cfg.optimizer.adam_eps) == ((0.9, 0.98), 1e-9)
    assert cfg.optimizer.weight_decay == 0
    assert cfg.lr_scheduler._name == "staged_cosine"
    assert cfg.lr_scheduler.stage_updates == cfg.model.stage_updates == "50000,88339,88339"
    assert cfg.model.bmt_preset == "bmt-1"
    generate = word_lists.calls("fairseq-generate")[0]
    search = ("--beam", "--gnmt-lenpen", "--task")
    assert generate.values(*search) == ["4", "0.6", "translation_ext"]
    assert "--lenpen" not in generate
    (preprocess,) = word_lists.calls("fairseq-preprocess")
    assert preprocess.values("--nwordssrc", "--nwordstgt") == ["32000", "32000"]


def test_distillation_from_an_own_or_a_given_teacher(tmp_path: Path) -> None:
    models = dry_run(WMT, tmp_path, "--preset", "bmt-6", "--kd").trainings()
    assert models == dry_run(WMT, tmp_path, "--preset", "bmt-6", KD="1").trainings()
    assert list(models) == ["teacher", "checkpoints"]
    teacher, student = models.values()
    smoothed = ["float", "label_smoothed_cross_entropy"]
    assert teacher.values("--bmt-preset", "--criterion") == smoothed
    assert teacher.value("--max-update") == student.value("--max-update")
    teacher_path = write_lines(tmp_path / "teacher.pt", ["x"])
    (other,) = dry_run(WMT, tmp_path, "--teacher", teacher_path).trainings().values()
    for words, path in ((student, f"teacher/{LAST}"), (other, str(teacher_path))):
        criterion = words.settings().criterion
        assert (criterion._name, criterion.teacher) == ("distillation", path)


@pytest.mark.parametrize(
    ("preset", "stages", "updates"), [("float", "9000", 9000), ("bmt-1", "9000,8000", 17_000)]
)
def test_rows_without_binary_activations_need_no_third_stage(preset, stages, updates, tmp_path):
    train = dry_run(WMT, tmp_path, "--preset", preset, "--stages", stages).trainings()
    assert train["checkpoints"].value("--max-update") == str(updates)


def test_scales_are_the_papers_and_go_on_from_one_float_stage(tmp_path: Path) -> None:
    word_lists = dry_run(ABLATIONS, tmp_path, *CORPUS, "--only", "scale")
    models = word_lists.trainings()
    scales = [str(2**power) for power in range(13)]
    sweep = [f"models/scale-{scale}" for scale in scales]
    assert list(models) == ["models/scale-float", "models/stage-scale", *sweep]
    stem = f"models/stage-scale/{LAST}"
    assert word_lists.calls("cp") == [["cp", stem, f"{folder}/{LAST}"] for folder in sweep]
    assert models["models/stage-scale"].value("--max-update") == "2000"
    for folder, scale in zip(sweep, scales, strict=True):
        assert models[folder].values("--bmt-preset", "--bmt-scale") == ["bmt-s", scale]
    cfg = models[sweep[-1]].settings()
    assert (cfg.model.bmt_scale, cfg.optimization.max_update) == (4096, 4000)
    assert cfg.lr_scheduler.stage_updates == cfg.model.stage_updates == "2000,1000,1000"


def test_outputs_alone_are_binarized_at_once(tmp_path: Path) -> None:
    models = dry_run(ABLATIONS, tmp_path, *CORPUS, "--only", "output").trainings()
    variants = ["plain", "scale", "layer", "shortcut"]
    assert list(models) == [f"models/output-{name}" for name in ("float", *variants)]
    for name in variants:
        words = models[f"models/output-{name}"]
        cfg = words.settings()
        assert (cfg.model.bmt_preset, cfg.model.bmt_attention_output) == ("float", name)
        assert cfg.model.binary_weights == cfg.model.binary_activations == "out"
        assert cfg.model.stage_updates == "2000,0,1000"
        assert cfg.optimization.max_update == 3000
        assert cfg.model.bmt_scale == 64


def test_rows_of_table_1_go_on_from_their_float_stage(tmp_path: Path) -> None:
    word_lists = dry_run(TABLE1, tmp_path, "--subwords", "tokenizers", SMOKE="1")
    splits = word_lists.calls("fairseq-ext", "subwords")
    assert {words.value("--kind") for words in splits} == {"tokenizers"}
    models = word_lists.trainings()
    stems = {"float": "stage-float", "bmt-6": "stage-float", "xnor-base": "stage-xnor-base"}
    assert set(models) == {f"models/{name}" for name in (*stems, *stems.values())}
    assert word_lists.calls("cp") == [
        ["cp", f"models/{stem}/{LAST}", f"models/{name}/{LAST}"] for name, stem in stems.items()
    ]
    schedule = ("--bmt-preset", "--max-update", "--stage-updates")
    for name, stem in stems.items():
        preset = stem.removeprefix("stage-")
        assert models[f"models/{name}"].values(*schedule) == [name, "16", "8,4,4"]
        assert models[f"models/{stem}"].values(*schedule) == [preset, "8", "8,4,4"]


def finished_model(folder: Path, train: dict[int, float], valid: float, bleu: float) -> None:
    """Write a model's folder as compare.sh leaves it; losses in bits, as fairseq logs them."""
    lines = [
        json.dumps({"epoch": 1, "loss": "9", "nll_loss": str(loss), "num_updates": str(update)})
        for update, loss in train.items()
    ]
    last = {"epoch": 1, "valid_loss": "8", "valid_nll_loss": str(valid)}
    lines.append(json.dumps({**last, "valid_num_updates": str(max(train))}))
    write_lines(folder / "train.log", lines)
    scores = [{"name": "BLEU", "value": bleu}, {"name": "chrF", "value": 1.0}]
    (folder / "scores.json").write_text(json.dumps({"scores": scores}))


@pytest.mark.parametrize("figure", ["scale", "output"])
def test_figures_have_the_losses_of_the_logs(figure, tmp_path, monkeypatch, capsys) -> None:
    order = ["float", "2", "16", "128"] if figure == "scale" else ["float", "plain", "shortcut"]
    for place, name in enumerate(reversed(order)):
        # 1000 is the last update, so the training loss is the mean of what comes after 900
        train = {850: 7.0, 950: 3.0 + place, 1000: 4.0 + place}
        finished_model(tmp_path / "models" / f"{figure}-{name}", train, 2.0 + place, 10.0 * place)
    write_lines(tmp_path / "models" / f"{figure}-9.old-1" / "scores.json", ["{}"])
    monkeypatch.setattr(sys, "argv", ["ablations.py", figure, "--dir", str(tmp_path)])
    ablations.main()
    output = capsys.readouterr().out
    models = json.loads((tmp_path / f"{figure}.json").read_text())["models"]
    assert [model["name"] for model in models] == order
    for place, model in enumerate(reversed(models)):
        assert model["valid_loss"] == pytest.approx((2 + place) * math.log(2))
        assert model["train_loss"] == pytest.approx((3.5 + place) * math.log(2))
        assert (model["bleu"], model["updates"]) == (10.0 * place, 1000)
    check_pictures(tmp_path, figure)
    assert [line.split()[0] for line in output.splitlines()[1:]] == order
    assert f"| {order[1]} | 1,000 |" in (tmp_path / f"{figure}.md").read_text()


def test_nothing_finished_is_said_in_the_last_line(tmp_path: Path, monkeypatch) -> None:
    finished_model(tmp_path / "models" / "scale-float", {10: 1.0}, 1.0, 1.0)
    for figure in ("scale", "output"):
        monkeypatch.setattr(sys, "argv", ["ablations.py", figure, "--dir", str(tmp_path)])
        with pytest.raises(SystemExit, match=f"error: .* holds no finished model of `{figure}`"):
            ablations.main()


def test_rows_of_table_1_say_what_is_binarized(tmp_path: Path) -> None:
    for name in ("bmt-6", "stage-float", "float", "xnor-base"):
        finished_model(tmp_path / "models" / name, {10: 1.0}, 1.0, 20.5)
    ablations.report(tmp_path, "table1")
    lines = (tmp_path / "table1.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| float", "| bmt-6", "| xnor-base"]
    assert lines[2].startswith("| float |  |  | 10 |")
    assert lines[3].split(" | ")[1] == " ".join(sorted(PRESETS["bmt-6"].weights))
    check_pictures(tmp_path, "table1")


@pytest.mark.long
def test_a_distilled_run_from_nothing_to_the_end(tmp_path: Path) -> None:
    out = tmp_path / "my run"
    words = (WMT, "--out", out, "--preset", "bmt-3", "--kd")
    done = bash(*words)
    results = json.loads((out / "results.json").read_bytes())
    assert results["updates"] == 22
    assert [score["name"] for score in results["scores"]][:2] == ["BLEU", "chrF"]
    log = (out / "checkpoints" / "train.log").read_text()
    assert "binary weights and activations from here on" in log
    check_pictures(out, "curves", "lengths")
    assert done.stdout.splitlines()[-1].startswith("The paper: ")
    check_repeat(done, *words)


@pytest.mark.long
def test_all_ablations_run(tmp_path: Path) -> None:
    output = bash(ABLATIONS, "--out", tmp_path / "run").stdout
    variants = {"scale": ["float", "1", "64"], "output": ["float", "plain", "shortcut"]}
    for figure, expected in variants.items():
        data = json.loads((tmp_path / "run" / f"{figure}.json").read_text())
        assert [model["name"] for model in data["models"]] == expected
        assert all(0 < model["valid_loss"] < 20 for model in data["models"])
        check_pictures(tmp_path / "run", figure)
    assert output.splitlines()[-1].startswith("Everything is in")


# The scaling-law recipe: the paper's design in a dry run, and its measure against fairseq's
RECIPE = RECIPES / "bmt" / "scaling_law.sh"
DEPTHS = (6, 8, 10, 12, 14, 18, 22, 26, 30, 36, 42, 48)


def test_dry_run_has_the_papers_design(tmp_path: Path) -> None:
    models = dry_run(RECIPE, tmp_path, *CORPUS).trainings()
    sizes = [(6, depth) for depth in DEPTHS] + [(depth, 6) for depth in DEPTHS]
    design = {}
    for encoder, decoder in sizes:
        layers, name = [str(encoder), str(decoder)], f"{encoder}L{decoder}L"
        design[f"models/float-{name}"] = ["float", "50000", *layers]
        design[f"models/binary-{name}"] = ["bmt-1", "90000", *layers]
    flags = ("--bmt-preset", "--max-update", "--encoder-layers", "--decoder-layers")
    assert {folder: words.values(*flags) for folder, words in models.items()} == design
    for words in models.values():
        assert words.value("--criterion") == "cross_entropy"
        assert "--label-smoothing" not in words
    for folder in ("models/float-6L6L", "models/binary-6L48L"):
        cfg = models[folder].settings()
        for side in ("encoder", "decoder"):
            names = ("embed_dim", "ffn_embed_dim", "attention_heads")
            assert [cfg.model[f"{side}_{name}"] for name in names] == [512, 2048, 8]
        assert cfg.model.share_all_embeddings
        assert cfg.lr_scheduler._name == "staged_cosine"
        assert cfg.lr_scheduler.stage_updates == cfg.model.stage_updates == "50000,40000"


def test_binary_models_begin_with_the_float_ones_of_their_size(tmp_path: Path) -> None:
    word_lists = dry_run(RECIPE, tmp_path, *CORPUS, "--depths", "2,4", "--base", 2)
    (measured,) = [words for words in word_lists if "scaling_losses.py" in " ".join(words)]
    steps = [words for words in word_lists if words[0] in ("fairseq-train", "cp")]
    for number, size in enumerate(("2L2L", "4L2L", "2L4L")):
        base, copy, training = steps[3 * number : 3 * number + 3]
        folders = {family: f"models/{family}-{size}" for family in ("float", "binary")}
        assert [words.value("--save-dir") for words in (base, training)] == [*folders.values()]
        assert copy == ["cp", *(f"{folder}/{LAST}" for folder in folders.values())]
        assert {f"{family}={folder}/{LAST}" for family, folder in folders.items()} < {*measured}
    assert len(steps) == 9


def test_more_evaluation_sets_get_fairseqs_numbers(tmp_path: Path) -> None:
    sets = ("--eval", f"wiki={tmp_path}/w", "--eval", f"news={tmp_path}/n")
    word_lists = dry_run(RECIPE, tmp_path, *CORPUS, *sets, "--subwords", "sentencepiece-unigram")
    copies = [words for words in word_lists.calls("cp") if words[2].startswith("text/")]
    assert ["cp", f"{tmp_path}/w.src", "text/wiki.src"] in copies
    assert len(copies) == 4
    split = word_lists.calls("fairseq-ext", "subwords")[0]
    assert split.value("--kind") == "sentencepiece-unigram"
    assert word_lists.index(split) > word_lists.index(copies[-1])
    (preprocess,) = word_lists.calls("fairseq-preprocess")
    assert preprocess.value("--testpref") == "bpe/test,bpe/sample,bpe/wiki,bpe/news"
    (measured,) = [words for words in word_lists if "scaling_losses.py" in " ".join(words)]
    splits = [measured[i + 1] for i, word in enumerate(measured) if word == "--split"]
    assert splits == ["valid=valid", "test=test", "sample=test1", "wiki=test2", "news=test3"]
    assert measured.value("--train") == "sample"


@pytest.mark.parametrize(("lines", "sample_lines"), [(10, 4), (7, 7), (3, 5), (100, 7)])
def test_sample_is_spread_over_the_training_text(lines, sample_lines, tmp_path):
    script = dry_run(RECIPE, tmp_path, *CORPUS).calls("awk")[0][3]
    text = write_lines(tmp_path / "text", [str(i) for i in range(lines)])
    drawn = run("awk", "-v", f"wanted={sample_lines}", script, text, text).stdout.split()
    numbers = [int(line) for line in drawn]
    assert len(numbers) == min(lines, sample_lines)
    gaps = {after - before for before, after in pairwise(numbers)}
    assert max(gaps, default=1) - min(gaps, default=1) <= 1


@pytest.mark.parametrize(("encoder", "decoder"), [(6, 6), (2, 5)])
def test_size_counts_layers_and_no_embeddings(encoder: int, decoder: int) -> None:
    layers = ("--encoder-layers", str(encoder), "--decoder-layers", str(decoder))
    model, _ = build(["--arch", "transformer", *layers, "--decoder-learned-pos"])
    assert scaling_losses.size(model.encoder) == encoder * 3_152_384
    assert scaling_losses.size(model.decoder) == decoder * 4_204_032


def test_losses_are_fairseqs_in_nats(copy_data: Path, tmp_path: Path) -> None:
    layers = ("--encoder-layers", 1, "--decoder-layers", 2)
    fairseq(
        *("train", copy_data, "--arch", "bmt_tiny", *layers, "--save-dir", tmp_path),
        *("--bmt-preset", "bmt-1", "--stage-updates", "3,4", "--optimizer", "adam", "--lr", 0.003),
        *("--lr-scheduler", "staged_cosine", "--warmup-updates", 1, "--max-update", 7),
        *("--criterion", "cross_entropy", "--max-tokens", 400, "--num-workers", 0),
    )
    checkpoint, table = tmp_path / "checkpoint_last.pt", tmp_path / "table.json"
    run(
        *(sys.executable, RECIPES / "bmt" / "scaling_losses.py", f"binary={checkpoint}"),
        *("--data", copy_data, "--split", "valid=valid", "--split", "held=test", "--train", "held"),
        *("-o", table),
    )
    (row,) = read_table(table)
    assert (row.name, row.family, row.dataset) == ("1L2L", "binary", "valid")
    validation = fairseq(
        *("validate", copy_data, "--path", checkpoint, "--task", "translation"),
        *("--valid-subset", "valid", "--max-tokens", 400, "--num-workers", 0),
    )
    bits = float(re.search(r"\| loss ([\d.]+)", validation.stdout + validation.stderr)[1])
    assert row.loss == pytest.approx(bits * math.log(2), abs=1e-3)
    assert row.train_loss != row.loss
    assert len(json.loads(table.read_text())) == 1
