"""The recipe that trains every system on Multi30k to its end."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import multi30k_all
import pytest

from fairseq_ext.utils.errors import DataError
from tests.support.harness import wait_for, write_lines
from tests.support.recipes import ENVIRONMENT, RECIPES, bash, dry_run, settings, trainings, value

RECIPE = RECIPES / "multi30k_all.sh"
GROUP_1 = ["transformer", "muse", "bmt", "muse-simple", "linformer-32", "linformer-8", "gru"]


def test_every_system_tries_three_rates_and_the_best_goes_on(tmp_path: Path) -> None:
    word_lists = dry_run(RECIPE, tmp_path, "--group", 1, "--jobs", 2)
    trained = [words for words in word_lists if words[0] == "fairseq-train"]
    assert len(trained) == 4 * 8
    for number, name in enumerate([*GROUP_1, "bmt-1"]):
        *tries, last = trained[4 * number : 4 * number + 4]
        assert [value(words, "--lr") for words in tries] == ["0.001", "0.002", "0.004"]
        for words in tries:
            assert value(words, "--save-dir") == f"models/{name}/rate-{value(words, '--lr')}"
            assert value(words, "--max-update") == "2000"
        assert value(last, "--max-update") == "30000"
        changed = [first for first, second in zip(tries[0], last, strict=True) if first != second]
        assert changed == ["2000"]  # the best one goes on where it is
    assert sum(words[1:2] == ["average"] for words in word_lists) == 8
    assert sum(words[0] == "fairseq-generate" for words in word_lists) == 3 * 8


def test_settings_are_the_literatures(tmp_path: Path) -> None:
    names = (*GROUP_1, "bmt-1", "binary", "bmt-6", "binary-linformer", "ternary")
    word_lists = dry_run(RECIPE, tmp_path, *names, "--rates", "0.002")
    for folder, words in trainings(word_lists).items():
        cfg = settings(words)
        assert cfg.model.share_all_embeddings
        assert (cfg.optimization.clip_norm, cfg.checkpoint.patience) == (1.0, 10)
        assert (cfg.checkpoint.keep_last_epochs, cfg.dataset.max_tokens) == (10, 1000)
        assert cfg.optimization.update_freq == [1]
        assert cfg.lr_scheduler.warmup_updates == 1000
        binary = re.match("models/(bmt-|binary|ternary)", folder) is not None
        assert cfg.model.dropout == (0.1 if binary else 0.3)
        assert (cfg.checkpoint.finetune_from_model is not None) == binary
        distilled = re.match("models/bmt-[16]/", folder) is not None
        assert (cfg.criterion._name == "distillation") == distilled
        if folder.startswith("models/linformer"):
            assert cfg.model.linformer_k == folder.split("/")[1].rpartition("-")[2]
        if folder.startswith("models/bmt"):
            preset = folder.split("/")[1]
            assert cfg.model.bmt_preset == ("float" if preset == "bmt" else preset)


def test_systems_bring_along_what_they_need(tmp_path: Path) -> None:
    word_lists = dry_run(RECIPE, tmp_path, "bmt-6@2", "--rates", "0.002,0.004", "--updates", 9000)
    models = trainings(word_lists)
    names = list(dict.fromkeys(folder.split("/")[1] for folder in models))
    assert names == ["bmt", "bmt-1", "bmt-6", "bmt@2", "bmt-1@2", "bmt-6@2"]
    assert [folder for folder in models if "@" in folder] == [
        f"models/{name}@2/rate-0.002" for name in ("bmt", "bmt-1", "bmt-6")
    ]
    second = models["models/bmt-6@2/rate-0.002"]
    assert value(second, "--seed") == "2"
    assert value(second, "--teacher") == "models/bmt@2/average.pt"
    assert value(second, "--finetune-from-model") == "models/bmt-1@2/average.pt"
    comparison = next(words for words in word_lists if words[:2] == ["fairseq-ext", "compare"])
    bmt = "bmt=models/bmt/test/generated.txt,models/bmt@2/test/generated.txt,checkpoint="
    assert comparison[3].startswith(bmt)


def test_a_gpu_takes_the_literatures_batches_in_bf16(tmp_path: Path) -> None:
    models = trainings(dry_run(RECIPE, tmp_path, "--device", "gpu", "muse"))
    assert list(models) == [f"models/muse/rate-{rate}" for rate in ("0.0025", "0.005", "0.01")]
    words = models["models/muse/rate-0.0025"]
    cfg = settings(words)
    assert (cfg.dataset.max_tokens, cfg.optimization.update_freq) == (4096, [2])
    assert (cfg.lr_scheduler.warmup_updates, cfg.optimization.max_update) == (2000, 8000)
    assert cfg.common.bf16


TERNARY = ("ternary", "ternary-muse")


def test_all_systems_in_their_order(tmp_path: Path) -> None:
    models = trainings(dry_run(RECIPE, tmp_path))
    names = list(dict.fromkeys(folder.split("/")[1] for folder in models))
    assert names[:8] == [*GROUP_1, "bmt-1"]
    seeds = ["transformer@2", "muse@2", "transformer@3", "muse@3"]
    assert names[8:15] == ["bmt-6", "bmt-1-plain", "binary", *seeds]
    assert {"gru@3", "bmt-6@2", "binary-muse", "binary-linformer"} < set(names[15:])
    assert names[-6:] == [f"{name}{seed}" for name in TERNARY for seed in ("", "@2", "@3")]
    assert len(names) == 8 + 7 + 9 * 2 + 2 + 6


def write_log(path: Path, losses: dict[int, float], *, early: bool = False) -> None:
    lines = ["num. shared model params: 1,000 (num. trained: 1,000)"]
    for epoch, (update, loss) in enumerate(losses.items(), start=1):
        figures = f"loss {loss} | ppl {2**loss} | num_updates {update}"
        lines.append(f"epoch {epoch:03d} | loss 9 | wpb 50 | num_updates {update} | train_wall 6")
        lines.append(f"epoch {epoch:03d} | valid on 'valid' subset | {figures}")
    lines += ["early stop since valid performance hasn't improved for last 10 runs"] * early
    write_lines(path, lines)


def test_rates_are_judged_by_the_same_update(tmp_path: Path) -> None:
    """A training that has gone on is judged by that update, whatever it has reached since."""
    write_log(tmp_path / "rate-0.1" / "train.log", {509: 6.0, 2000: 4.5, 2036: 3.0, 4000: 1.0})
    write_log(tmp_path / "rate-0.2" / "train.log", {509: 5.0, 2000: 4.25})
    choice = multi30k_all.choose(tmp_path, ["0.1", "0.2"], 2000)
    assert choice == {"rate": "0.2", "updates": 2000, "losses": {"0.1": 4.5, "0.2": 4.25}}
    with pytest.raises(DataError, match=r"rate-0\.2.* has no validation up to update 500"):
        multi30k_all.choose(tmp_path, ["0.2"], 500)


@pytest.mark.parametrize("early", [True, False])
def test_a_row_says_why_the_training_ended(tmp_path: Path, early: bool) -> None:
    folder = tmp_path / "muse@3"
    write_log(folder / "train.log", {10: 6.0, 20: 4.0, 30: 5.0}, early=early)
    write_lines(folder / "settings.txt", ["seed=3"])
    write_lines(folder / "machine.json", ['{"gpu": null, "processor": "P", "threads": 1}'])
    write_lines(tmp_path / "muse" / "rates.json", ['{"rate": "0.2"}'])
    row = multi30k_all.training_row("muse@3", tmp_path, 10)
    assert (row["system"], row["seed"], row["rate"]) == ("muse", 3, "0.2")
    assert (row["updates"], row["tokens"], row["seconds"]) == (30, 1500, 18)
    assert (row["best_update"], row["validations_after_best"]) == (20, 1)
    end = "no gain in 10 validations" if early else "all updates"
    assert row["ended"] == end
    assert row["valid_perplexity"] == 16


@pytest.mark.system
@pytest.mark.long
def test_stopped_by_ctrl_c_it_goes_on_to_the_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("bash", str(RECIPE), "--jobs", "2", "--out", str(out))
    running = subprocess.Popen(
        command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for((out / "models/bmt/rate-0.002/train.log").exists, running)
    os.kill(running.pid, signal.SIGINT)  # only the recipe: it has to stop its children itself
    output = running.communicate(timeout=120)[1]
    assert running.returncode == 130
    assert "the same command again" in output
    assert not trained_by(out)

    done = bash(*command[1:])
    assert "bmt-1" in done.stdout
    rows = json.loads((out / "systems.json").read_text(encoding="utf-8"))
    assert set(rows["rates"]) == {"bmt", "bmt-1"}
    for row in rows["systems"]:
        assert row["updates"] == 16
        assert row["ended"] == "all updates"
        assert set(row["tests"]) == {"test", "test_2017_flickr"}
        assert row["machine"]["processor"]
        assert f"rate={rows['rates'][row['system']]['rate']}" in row["settings"]
    assert [(row["system"], row["seed"]) for row in rows["systems"]] == [
        *(("bmt", 1), ("bmt-1", 1), ("bmt", 2))
    ]
    systems = json.loads((out / "compare-test.json").read_text(encoding="utf-8"))["systems"]
    assert [system["scores"]["BLEU"]["runs"] for system in systems] == [2, 1]
    for picture in ("curves", "lengths", "compare-test"):
        assert (out / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    log = (out / "models/bmt-1/train.log").read_text(encoding="utf-8")
    assert "'teacher': 'models/bmt/average.pt'" in log
    second_run = bash(*command[1:])
    assert "fairseq-train" not in second_run.stderr
    assert "fairseq-generate" not in second_run.stderr


def trained_by(out: Path) -> list[Path]:
    """Return the processes whose working directory is a folder."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == out:
                processes.append(process)
        except OSError:  # it has ended
            continue
    return processes
