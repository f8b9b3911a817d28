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
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import fairseq, run, write_lines, write_sides
from tests.support.models import build
from tests.support.recipes import RECIPES, bash, dry_run, settings, trainings, value

WMT, ABLATIONS = RECIPES / "bmt" / "wmt17_de_en.sh", RECIPES / "bmt" / "ablations.sh"
TABLE1 = RECIPES / "bmt" / "table1.sh"


def test_dry_run_has_the_papers_settings(tmp_path: Path) -> None:
    word_lists = dry_run(WMT, tmp_path)
    (train,) = trainings(word_lists).values()
    cfg = settings(train)
    for side in (cfg.model.encoder_layers, cfg.model.decoder_layers):
        assert side == 6
    for side in ("encoder", "decoder"):
        sizes = [getattr(cfg.model, f"{side}_{name}") for name in ("embed_dim", "ffn_embed_dim")]
        assert sizes == [1024, 4096]
        assert getattr(cfg.model, f"{side}_attention_heads") == 16
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
    generate = next(words for words in word_lists if words[0] == "fairseq-generate")
    assert value(generate, "--beam") == "4"
    assert value(generate, "--gnmt-lenpen") == "0.6"
    assert value(generate, "--task") == "translation_ext"
    assert "--lenpen" not in generate
    preprocess = next(words for words in word_lists if words[0] == "fairseq-preprocess")
    assert value(preprocess, "--nwordssrc") == value(preprocess, "--nwordstgt") == "32000"


def test_distillation_from_an_own_or_a_given_teacher(tmp_path: Path) -> None:
    models = trainings(dry_run(WMT, tmp_path, "--preset", "bmt-6", "--kd"))
    assert models == trainings(dry_run(WMT, tmp_path, "--preset", "bmt-6", KD="1"))
    assert list(models) == ["teacher", "checkpoints"]
    assert value(models["teacher"], "--bmt-preset") == "float"
    assert value(models["teacher"], "--criterion") == "label_smoothed_cross_entropy"
    assert value(models["teacher"], "--max-update") == value(models["checkpoints"], "--max-update")
    teacher_path = write_lines(tmp_path / "teacher.pt", ["x"])
    other = trainings(dry_run(WMT, tmp_path, "--teacher", teacher_path))
    for student, teacher in (
        (models["checkpoints"], "teacher/checkpoint_last.pt"),
        (other["checkpoints"], str(teacher_path)),
    ):
        cfg = settings(student)
        assert cfg.criterion._name == "distillation"
        assert cfg.criterion.teacher == teacher


@pytest.mark.parametrize(
    ("preset", "stages", "updates"), [("float", "9000", 9000), ("bmt-1", "9000,8000", 17_000)]
)
def test_rows_without_binary_activations_need_no_third_stage(preset, stages, updates, tmp_path):
    train = trainings(dry_run(WMT, tmp_path, "--preset", preset, "--stages", stages))
    assert value(train["checkpoints"], "--max-update") == str(updates)


def test_two_teachers_are_one_too_many(tmp_path: Path) -> None:
    teacher = write_lines(tmp_path / "teacher.pt", ["x"])
    done = bash(WMT, "--teacher", teacher, ok=False, SMOKE="0", KD="1")
    assert "`--teacher` does not go with `--kd`" in done.stderr


def shown(recipe: Path, folder: Path, *options: object) -> list[list[str]]:
    """Return the commands of a dry run on a corpus with the endings src and tgt."""
    corpus = write_sides(folder / "text", {"src": ["1 2 3"], "tgt": ["1 2 3"]})
    return dry_run(recipe, folder, corpus, "src", "tgt", *options)


def test_scales_are_the_papers_and_go_on_from_one_float_stage(tmp_path: Path) -> None:
    word_lists = shown(ABLATIONS, tmp_path, "--only", "scale")
    models = trainings(word_lists)
    sweep = [f"models/scale-{2**power}" for power in range(13)]
    assert list(models) == ["models/scale-float", "models/stage-scale", *sweep]
    copies = [tuple(words[1:]) for words in word_lists if words[0] == "cp"]
    last = "checkpoint_last.pt"
    assert copies == [(f"models/stage-scale/{last}", f"{folder}/{last}") for folder in sweep]
    assert value(models["models/stage-scale"], "--max-update") == "2000"
    for folder in sweep:
        assert value(models[folder], "--bmt-preset") == "bmt-s"
        assert value(models[folder], "--bmt-scale") == folder.rpartition("-")[2]
    cfg = settings(models[sweep[-1]])
    assert (cfg.model.bmt_scale, cfg.optimization.max_update) == (4096, 4000)
    assert cfg.lr_scheduler.stage_updates == cfg.model.stage_updates == "2000,1000,1000"


def test_outputs_alone_are_binarized_at_once(tmp_path: Path) -> None:
    models = trainings(shown(ABLATIONS, tmp_path, "--only", "output"))
    variants = ["plain", "scale", "layer", "shortcut"]
    assert list(models) == [f"models/output-{name}" for name in ("float", *variants)]
    for name in variants:
        words = models[f"models/output-{name}"]
        cfg = settings(words)
        assert (cfg.model.bmt_preset, cfg.model.bmt_attention_output) == ("float", name)
        assert cfg.model.binary_weights == cfg.model.binary_activations == "out"
        assert cfg.model.stage_updates == "2000,0,1000"
        assert cfg.optimization.max_update == 3000
        assert cfg.model.bmt_scale == 64


def test_rows_of_table_1_go_on_from_their_float_stage(tmp_path: Path) -> None:
    word_lists = dry_run(TABLE1, tmp_path, "--subwords", "tokenizers", SMOKE="1")
    splits = [words for words in word_lists if words[:2] == ["fairseq-ext", "subwords"]]
    assert {value(words, "--kind") for words in splits} == {"tokenizers"}
    models = trainings(word_lists)
    stems = {"float": "stage-float", "bmt-6": "stage-float", "xnor-base": "stage-xnor-base"}
    assert set(models) == {f"models/{name}" for name in (*stems, *stems.values())}
    last = "checkpoint_last.pt"
    copies = [tuple(words[1:]) for words in word_lists if words[0] == "cp"]
    assert copies == [(f"models/{s}/{last}", f"models/{n}/{last}") for n, s in stems.items()]
    for name, stem in stems.items():
        row, start = models[f"models/{name}"], models[f"models/{stem}"]
        assert value(row, "--bmt-preset") == name
        assert value(start, "--bmt-preset") == ("xnor-base" if name == "xnor-base" else "float")
        assert (value(start, "--max-update"), value(row, "--max-update")) == ("8", "16")
        assert value(row, "--stage-updates") == value(start, "--stage-updates") == "8,4,4"


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
    (tmp_path / "models" / f"{figure}-9.old-1").mkdir()
    (tmp_path / "models" / f"{figure}-9.old-1" / "scores.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["ablations.py", figure, "--dir", str(tmp_path)])
    ablations.main()
    output = capsys.readouterr().out
    models = json.loads((tmp_path / f"{figure}.json").read_text())["models"]
    assert [model["name"] for model in models] == order
    for place, model in enumerate(reversed(models)):
        assert model["valid_loss"] == pytest.approx((2 + place) * math.log(2))
        assert model["train_loss"] == pytest.approx((3.5 + place) * math.log(2))
        assert (model["bleu"], model["updates"]) == (10.0 * place, 1000)
    assert (tmp_path / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
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
    assert (tmp_path / "table1.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_distilled_run_from_nothing_to_the_end(tmp_path: Path) -> None:
    out = tmp_path / "my run"
    words = (WMT, "--out", out, "--preset", "bmt-3", "--kd")
    done = bash(*words)
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results["updates"] == 22
    assert [score["name"] for score in results["scores"]][:2] == ["BLEU", "chrF"]
    log = (out / "checkpoints" / "train.log").read_text()
    assert "binary weights and activations from here on" in log
    for picture in ("curves", "lengths"):
        assert (out / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.splitlines()[-1].startswith("The paper: ")
    again = bash(*words).stdout  # no stage runs again; the results are printed again
    assert again.startswith("Sample translations")
    assert done.stdout.endswith(again)


@pytest.mark.long
def test_all_ablations_run(tmp_path: Path) -> None:
    output = bash(ABLATIONS, "--out", tmp_path / "run").stdout
    variants = {"scale": ["float", "1", "64"], "output": ["float", "plain", "shortcut"]}
    for figure, expected in variants.items():
        data = json.loads((tmp_path / "run" / f"{figure}.json").read_text())
        assert [model["name"] for model in data["models"]] == expected
        assert all(0 < model["valid_loss"] < 20 for model in data["models"])
        assert (tmp_path / "run" / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
    assert output.splitlines()[-1].startswith("Everything is in")


# The scaling-law recipe: the paper's design in a dry run, and its measure against fairseq's
RECIPE = RECIPES / "bmt" / "scaling_law.sh"
DEPTHS = (6, 8, 10, 12, 14, 18, 22, 26, 30, 36, 42, 48)


def test_dry_run_has_the_papers_design(tmp_path: Path) -> None:
    trainings = [words for words in shown(RECIPE, tmp_path) if words[0] == "fairseq-train"]
    sizes = {
        (value(words, "--bmt-preset"), value(words, "--save-dir")): (
            int(value(words, "--encoder-layers")),
            int(value(words, "--decoder-layers")),
            int(value(words, "--max-update")),
        )
        for words in trainings
    }
    for preset, family, updates in (("float", "float", 50_000), ("bmt-1", "binary", 90_000)):
        designs = {s for (p, folder), s in sizes.items() if p == preset and family in folder}
        expected = {(d, 6, updates) for d in DEPTHS} | {(6, d, updates) for d in DEPTHS}
        assert designs == expected
    assert len(trainings) == len(sizes) == 46
    for words in trainings:
        assert value(words, "--criterion") == "cross_entropy"
        assert "--label-smoothing" not in words
    for words in (trainings[0], trainings[-1]):
        cfg = settings(words)
        assert cfg.model.encoder_embed_dim == cfg.model.decoder_embed_dim == 512
        assert cfg.model.encoder_ffn_embed_dim == cfg.model.decoder_ffn_embed_dim == 2048
        assert cfg.model.encoder_attention_heads == cfg.model.decoder_attention_heads == 8
        assert cfg.model.share_all_embeddings
        assert cfg.lr_scheduler._name == "staged_cosine"
        assert cfg.lr_scheduler.stage_updates == cfg.model.stage_updates == "50000,40000"


def test_binary_models_begin_with_the_float_ones_of_their_size(tmp_path: Path) -> None:
    word_lists = shown(RECIPE, tmp_path, "--depths", "2,4", "--base", 2)
    done: list[str] = []
    for words in word_lists:
        if words[0] == "fairseq-train":
            done.append(value(words, "--save-dir"))
        elif words[0] == "cp":
            assert words[1] == f"{done[-1]}/checkpoint_last.pt"
            done.append(Path(words[2]).parent.as_posix())
    sizes = ("2L2L", "4L2L", "2L4L")
    assert done == [
        f"models/{family}-{size}" for size in sizes for family in ("float", "binary", "binary")
    ]
    measured = next(words for words in word_lists if "scaling_losses.py" in " ".join(words))
    for size in sizes:
        for family in ("float", "binary"):
            assert f"{family}=models/{family}-{size}/checkpoint_last.pt" in measured


def test_more_evaluation_sets_get_fairseqs_numbers(tmp_path: Path) -> None:
    sets = ("--eval", f"wiki={tmp_path}/w", "--eval", f"news={tmp_path}/n")
    word_lists = shown(RECIPE, tmp_path, *sets, "--subwords", "sentencepiece-unigram")
    copied = [
        words[1:] for words in word_lists if words[0] == "cp" and words[2].startswith("text/")
    ]
    assert [f"{tmp_path}/w.src", "text/wiki.src"] in copied
    assert len(copied) == 4
    split = next(words for words in word_lists if words[:2] == ["fairseq-ext", "subwords"])
    assert value(split, "--kind") == "sentencepiece-unigram"
    assert word_lists.index(split) > word_lists.index(["cp", *copied[-1]])
    preprocess = next(words for words in word_lists if words[0] == "fairseq-preprocess")
    assert value(preprocess, "--testpref") == "bpe/test,bpe/sample,bpe/wiki,bpe/news"
    measured = next(words for words in word_lists if "scaling_losses.py" in " ".join(words))
    splits = [measured[i + 1] for i, word in enumerate(measured) if word == "--split"]
    assert splits == ["valid", "test", "sample=test1", "wiki=test2", "news=test3"]
    assert value(measured, "--train") == "sample"


@pytest.mark.parametrize(("lines", "sample_lines"), [(10, 4), (7, 7), (3, 5), (100, 7)])
def test_sample_is_spread_over_the_training_text(lines, sample_lines, tmp_path):
    script = next(words[3] for words in shown(RECIPE, tmp_path / "corpus") if words[0] == "awk")
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
        *("--data", copy_data, "--split", "valid", "--split", "held=test", "--train", "held"),
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


def test_names_and_values_are_taken_apart() -> None:
    assert scaling_losses.pairs(["valid", "a=b=c"], "X") == [("valid", "valid"), ("a", "b=c")]
    for wrong in ("=x", "a="):
        with pytest.raises(ConfigError, match="X must be NAME=VALUE"):
            scaling_losses.pairs([wrong], "X")
