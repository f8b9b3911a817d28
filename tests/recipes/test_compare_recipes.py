"""The recipes that compare architectures, and the corpora they train on."""

import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import multi30k_all
import pytest
import real_text

from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import DataError
from tests.support.harness import REPO, read_lines, run, wait_for, write_lines
from tests.support.moses_scripts import normalized, tokenized
from tests.support.recipes import RECIPES, bash, check_pictures, check_repeat, dry_run, start

COMPARE, COMPARE_ALL = RECIPES / "compare.sh", RECIPES / "compare_all.sh"
MULTI30K, MY = RECIPES / "multi30k.sh", ("my", "es", "en")
PLAIN = {
    "en": ["Two young, White males are outside.", "A man's “hat” …", "R&D, a well-known dog!"],
    "de": ["Zwei junge weiße Männer sind im Freien.", "Ein „Hut“ …", "Ein Hund – bekannt!"],
}


@pytest.mark.parametrize("name", ["multi30k", "multi30k_tok"])
def test_multi30k_is_read_from_its_official_files(tmp_path: Path, name: str) -> None:
    files, out = tmp_path / "files", tmp_path / "out"
    files.mkdir()
    expected = {}
    for side, lines in PLAIN.items():
        expected[side] = [tokenized(normalized(line, side), side).lower() for line in lines]
        for split in ("train", "val", "test_2016_flickr"):
            if name == "multi30k":
                data = "".join(f"{line}\n" for line in lines).encode()
                (files / f"{split}.{side}.gz").write_bytes(gzip.compress(data))
            else:
                write_lines(files / f"{split}.lc.norm.tok.{side}", expected[side])
    command = ("fairseq-ext", "corpus", name, "--out", out, "--bpe", 0)
    done = run(*command, "--mirror", files, "--workers", 1, ok=False)
    assert "train read: 3 pairs instead of 29,000" in done.stderr
    for split in ("train", "valid", "test"):
        for side in PLAIN:
            assert read_lines(out / "text" / f"{split}.{side}") == expected[side]
    assert read_lines(out / "reference" / "test.en")[0] == PLAIN["en"][0].lower()


def test_further_test_sets_are_taken_where_they_can_be_had(tmp_path: Path) -> None:
    """A mirror without them does, and what it gets later is added without repeating the rest."""
    files, out = tmp_path / "files", tmp_path / "out"
    for split in ("train", "val", "test_2016_flickr", "test_2017_mscoco"):
        for side in PLAIN:
            write_lines(files / f"{split}.lc.norm.tok.{side}", [f"{split} {side} a"] * 3)
    (files / "test_2017_mscoco.lc.norm.tok.de").unlink()
    command = ("fairseq-ext", "corpus", "multi30k_tok", "--bpe", 4)
    command += ("--out", out, "--mirror", files, "--workers", 1, "--any-counts")
    done = run(*command)
    for name in ("test_2017_flickr", "test_2017_mscoco"):
        assert f"{name}: left out." in done.stderr
    assert not list(out.glob("*/test_2017*.de"))
    assert done.stdout.rstrip().endswith(f"--testpref {out}/bpe/test --destdir …")
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert set(manifest["splits"]) == {"train", "valid", "test"}

    added = ["drei wörter hier"] * 3
    write_lines(files / "test_2017_mscoco.lc.norm.tok.de", added)
    done = run(*command)
    assert "test_2017_flickr: left out." in done.stderr
    for step in ("text", "merges", "subwords.train", "subwords.valid", "subwords.test"):
        assert f"\n{step}: done before" in f"\n{done.stderr}"
    tests = f"{out}/bpe/test,{out}/bpe/test_2017_mscoco"
    assert done.stdout.rstrip().endswith(f"--testpref {tests} --destdir …")
    assert "test_2017_mscoco: 3 pairs, but 461 are known" in done.stdout
    for folder in ("text", "reference"):
        assert read_lines(out / folder / "test_2017_mscoco.de") == added
    pieces = read_lines(out / "bpe" / "test_2017_mscoco.de")
    assert [line.replace("@@ ", "") for line in pieces] == added
    assert "@@ " in pieces[0]
    assert "bpe/test_2017_mscoco.de" in json.loads((out / "manifest.json").read_bytes())["sha256"]


def test_compare_all_trains_every_architecture_and_compares(tmp_path: Path) -> None:
    corpus, training, curves, comparison = dry_run(COMPARE_ALL, tmp_path, "--updates", 7)
    assert corpus[2:5] == ["multi30k", "--bpe", "0"]
    models = [word for word in training if re.match(r"[\w-]+=\w+", word)]
    names = [model.partition("=")[0] for model in models]
    assert names == ["transformer", "gru", "linformer", "muse", "muse-simple", "bmt", "binary"]
    assert models[-1].endswith("--binary-weights qkv,out,ffn")
    assert training.value("--updates") == "7"
    assert "--no-table" in training  # `compare` makes the only one
    systems = [word for word in comparison if ",checkpoint=" in word]
    assert [system.partition("=")[0] for system in systems] == names
    assert comparison.value("--baseline") == "transformer"
    assert curves.count("--log") == len(names)
    assert list(tmp_path.iterdir()) == []


def test_compare_all_takes_some_architectures_and_other_text(tmp_path: Path) -> None:
    options = ("--data", tmp_path, "--src", "es", "--tgt", "en", "--tokenize")
    options = (*options, "--metric", "comet:org/model", "muse", "gru")
    trial, training, _, comparison = dry_run(COMPARE_ALL, tmp_path, *options)
    assert trial == ["python", str(RECIPES / "try_metric.py"), "comet:org/model"]
    assert training[1:5] == [str(RECIPES / "compare.sh"), str(tmp_path), "es", "en"]
    assert [word.partition("=")[0] for word in training[-2:]] == ["gru", "muse"]
    text = " ".join(comparison)
    tokenized = f"{tmp_path}/run/text/test.en"
    assert f"--ref {tmp_path}/test.en --detokenize en --tokenized-ref {tokenized}" in text
    assert f"--metric comet:org/model --source {tmp_path}/test.es" in text


def test_compare_all_takes_the_languages_of_the_text(tmp_path: Path) -> None:
    Pipeline("de", "en").save(tmp_path)
    shown = dry_run(COMPARE_ALL, tmp_path, "--data", tmp_path, "gru")
    assert shown[0][1:5] == [str(RECIPES / "compare.sh"), str(tmp_path), "de", "en"]
    shown = dry_run(COMPARE_ALL, tmp_path, "--data", tmp_path, "--src", "en", "--tgt", "de", "gru")
    assert shown[0][3:5] == ["en", "de"]


def test_smoke_0_is_an_ordinary_run() -> None:
    shown = bash(COMPARE_ALL, "gru", DRY_RUN="1", SMOKE="0").stderr
    assert "/runs/compare-all/models/gru/" in shown
    assert "smoke" not in shown


def test_every_seed_is_a_training_and_every_model_a_row(tmp_path: Path) -> None:
    shown = dry_run(COMPARE_ALL, tmp_path, "--seeds", 2, "gru")
    outputs = [f"{tmp_path}/run/models/{name}/generated.txt" for name in ("gru", "gru@2")]
    (system,) = [word for word in shown[-1] if ",checkpoint=" in word]
    assert system.startswith(f"gru={','.join(outputs)},checkpoint=")
    first, second = dry_run(COMPARE, tmp_path, *MY, "--seeds", 2, "muse_tiny").trainings().items()
    assert (first[0], second[0]) == ("models/muse_tiny", "models/muse_tiny@2")
    assert second[1] == [
        word.replace("muse_tiny", "muse_tiny@2") if "/" in word else word for word in first[1]
    ] + ["--seed", "2"]


def test_words_have_one_dictionary_where_models_share_their_embeddings(tmp_path: Path) -> None:
    for flags, joined in (("", False), (" --share-all-embeddings", True)):
        shown = dry_run(COMPARE, tmp_path, *MY, "--bpe", 0, f"a=lstm{flags}")
        (preprocess,) = shown.calls("fairseq-preprocess")
        assert ("--joined-dictionary" in preprocess) == joined


def test_pasted_commands_find_their_folders(tmp_path: Path) -> None:
    """Relative paths are relative to the shared folder, into which each model's part returns."""
    out, folder = f"{tmp_path}/run", ""
    shown = dry_run(COMPARE, tmp_path, *MY, "gru_tiny", "muse_tiny")
    for words in shown:
        folder = words[1] if words[0] == "cd" else folder
        if words[0] in ("fairseq-train", "fairseq-generate"):
            assert folder == out
    folders = [out, f"{out}/models/gru_tiny", out, f"{out}/models/muse_tiny", out]
    assert [words[1] for words in shown.calls("cd")] == folders


def test_multi30k_trains_any_architecture_on_either_form(tmp_path: Path) -> None:
    tokenized_form = bash(MULTI30K, "--tok", "--out", tmp_path, DRY_RUN="1", SMOKE="0").stderr
    assert "+ fairseq-ext corpus multi30k_tok " in tokenized_form
    shown = dry_run(MULTI30K, tmp_path)
    programs = [words[1] if words[0] == "fairseq-ext" else words[0] for words in shown]
    expected = ["corpus", "fairseq-preprocess", "fairseq-train", "average", "fairseq-generate"]
    assert [name for name in dict.fromkeys(programs) if name in expected] == expected
    (train,) = shown.trainings().values()
    assert train.value("--encoder-layers") == "4"
    (train,) = dry_run(MULTI30K, tmp_path, "--arch", "gru_attention").trainings().values()
    assert "gru_attention" in train
    assert "--encoder-layers" not in train


def test_compare_all_from_nothing_to_the_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (COMPARE_ALL, "--out", out, "--updates", 5, "gru", "muse")
    done = bash(*words)
    assert re.search(r"^system +BLEU .*\ngru .*\nmuse ", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^muse .* ± ", done.stdout, re.MULTILINE)) == 1
    systems = json.loads((out / "compare.json").read_bytes())["systems"]
    assert [system["name"] for system in systems] == ["gru", "muse"]
    for system in systems:
        assert system["updates"] == 5
        assert min(system["parameters"], system["generation_speed"]) > 0
    check_pictures(out, "compare")
    check_repeat(done, *words)
    pattern = re.compile(r"^Translate a line of yours: echo … \| (.*)$", re.MULTILINE)
    (advice,) = pattern.findall(done.stdout)
    assert run(*shlex.split(advice), stdin="12 May\n", cwd="/").stdout.count("\n") == 1


@pytest.mark.long
def test_multi30k_from_nothing_to_the_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = bash(MULTI30K, "--arch", "gru_tiny", "--out", out)
    assert "about 41 BLEU on tokens" in done.stdout
    assert json.loads((out / "results.json").read_bytes())["updates"] == 24


# The recipe that trains all systems for the same number of updates, and its corpus
RECIPE = RECIPES / "real_en_de.sh"


def test_every_training_has_the_same_updates_and_ends_flat(tmp_path: Path) -> None:
    options = ("--corpus", "multi30k", "--updates", 3000, "gru@2", "bmt-1")
    models = dry_run(RECIPE, tmp_path, *options).trainings()
    rates = {"gru": 0.004, "gru@2": 0.004, "bmt": 0.004, "bmt-1": 0.001}
    assert list(models) == [f"models/{name}/rate-{rate}" for name, rate in rates.items()]
    for words in models.values():
        cfg = words.settings()
        assert cfg.lr_scheduler.warmup_updates + cfg.lr_scheduler.lr_period_updates == 3000
        assert cfg.checkpoint.patience == -1
        assert cfg.checkpoint.no_epoch_checkpoints
    assert models["models/gru@2/rate-0.004"].value("--max-update") == "3000"


def test_each_system_tries_rates_and_then_seeds(tmp_path: Path) -> None:
    models = dry_run(RECIPE, tmp_path).trainings()
    rates: dict[str, list[str]] = {}
    for folder in models:
        rates.setdefault(folder.split("/")[1], []).append(folder.rpartition("-")[2])
    assert rates["gru"] == ["0.001", "0.002", "0.004"]
    assert rates["transformer"] == ["0.0005", "0.001", "0.002"]
    assert rates["transformer@2"] == ["0.0005"]  # in a dry run, the first
    seeds = Counter(name.partition("@")[0] for name in rates)
    for system, number in seeds.items():
        assert number == (5 if system in ("transformer", "muse") else 3)
    assert {"lightconv", "dynamicconv", "transformer-12-1", "linformer-8", "binary"} < set(seeds)
    words = models["models/transformer-12-1-prenorm@3/rate-0.0005"]
    assert {"--encoder-normalize-before", "--decoder-normalize-before"} < set(words)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for text in real_text.TEXTS.values():
        monkeypatch.delitem(text, "sha256", raising=False)
    folder = tmp_path / "texts"
    for language in ("en", "de"):
        for name, size in (("newstest2012", 40), ("newstest2013", 20), ("newstest2014", 9)):
            lines = [f"{name} {language} news sentence number {n}" for n in range(size)]
            write_lines(folder / f"{name}.{language}", lines)
        # one caption of the training text is in a test
        write_lines(folder / f"train.raw.{language}", [f"a {language} dog", f"a {language} cat"])
        write_lines(folder / f"test_2016_flickr.raw.{language}", [f"a {language} dog"])
        write_lines(folder / f"val.raw.{language}", [f"a {language} bird"])
        for page in range(60):
            text = "".join(f'<p id="par_{n}">{language} {page} {n}</p>' for n in range(3))
            text += f'<p id="par_9">{language} b c d e f g {page}</p>'
            path = folder / "help" / {"en": "en-US", "de": "de"}[language] / "text" / f"{page}.html"
            write_lines(path, [text])
    return folder


def test_the_corpus_holds_out_pages_and_what_the_tests_have(texts: Path, tmp_path: Path) -> None:
    real_text.prepare(texts, tmp_path / "out", 60)
    record = json.loads((tmp_path / "out" / "sources.json").read_bytes())
    numbers = {part["name"]: (part["split"], part["pairs"]) for part in record}
    expected = {
        **{"newstest2012": ("train", 40), "newstest2013-train": ("train", 10)},
        **{"newstest2013-valid": ("valid", 10), "newstest2014": ("test", 9)},
        **{"val": ("valid", 1), "train": ("train", 1)},
    }
    assert expected.items() <= numbers.items()
    removed = {part["name"]: part["left out: in another split"] for part in record}
    assert numbers["help"][1] + numbers["test_help"][1] + removed["test_help"] == 240
    # one of four is a near-duplicate
    assert numbers["test_help"][1] == 3 * removed["test_help"] > 0
    for split in ("test", "test_help", "test_captions"):
        for folder in ("text", "bpe", "reference"):
            assert (tmp_path / "out" / folder / f"{split}.de").exists()
    real_text.prepare(texts, tmp_path / "out", 60)  # once more: all is there
    (texts / "newstest2012.en").unlink()
    (texts / "newstest2012.de").unlink()
    with pytest.raises(DataError, match="has a corpus of other texts"):
        real_text.prepare(texts, tmp_path / "out", 60)
    assert all(part["licence"] and part["sha256"] and part["domain"] for part in record)


def test_texts_that_are_missing_or_changed_are_named(texts: Path, tmp_path: Path) -> None:
    (texts / "newstest2014.de").unlink()
    with pytest.raises(DataError, match=r"`newstest2014` in .* the same number of both"):
        real_text.prepare(texts, tmp_path / "out", 60)
    (texts / "newstest2014.en").unlink()
    with pytest.raises(DataError, match="no text for `test`"):
        real_text.prepare(texts, tmp_path / "out", 60)
    command = (sys.executable, real_text.__file__, "--from", texts, "--out", tmp_path / "out")
    done = run(*command, ok=False)
    assert "is not the text that this recipe knows" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


# The recipe of the studies: which part of an architecture makes the difference
STUDIES = RECIPES / "studies.sh"
PUBLISHED = {"bmt": "bmt_study", "linformer-slots": "linformer_slots", "muse-rows": "muse_rows"}
"""The study's file in docs/results."""


@pytest.mark.parametrize("study", PUBLISHED)
def test_every_system_is_one_that_fairseq_takes_and_ends_with_rate_zero(
    study: str, tmp_path: Path
) -> None:
    options = (*MY, "--updates", 500, "--", "--dropout", "0.3")
    models = dry_run(STUDIES, tmp_path, study, *options).trainings()
    systems = json.loads((REPO / f"docs/results/{PUBLISHED[study]}.json").read_bytes())["systems"]
    names = [system["name"] for system in systems]
    if study == "bmt":
        names.insert(-2, "bmt-1-0.2")  # not published
    assert list(models) == [f"models/{name}" for name in names]
    for folder, words in models.items():
        distilled = folder.startswith("models/bmt-1-")
        if distilled:
            dropouts = [words[i + 1] for i, word in enumerate(words) if word == "--dropout"]
            assert dropouts[-2] == folder.rpartition("-")[2]
        assert ("--label-smoothing" in words) != distilled
        cfg = words.settings()
        assert (cfg.criterion._name == "distillation") == distilled
        schedule = cfg.lr_scheduler
        assert schedule._name == "cosine"
        assert schedule.warmup_updates + schedule.lr_period_updates == 500
        assert cfg.optimization.max_update == 500
        assert cfg.model.dropout == 0.3  # what comes after -- wins
        assert cfg.model.share_all_embeddings


def test_flags_that_would_fall_apart_are_refused(tmp_path: Path) -> None:
    words = ("muse-rows", *MY, "muse", "--", "--adam-betas")
    done = bash(STUDIES, *words, "(0.9, 0.999)", ok=False, DRY_RUN="1")
    assert "`(0.9, 0.999)` contains white space; write such values without" in done.stderr
    models = dry_run(STUDIES, tmp_path, *words, "(0.9,0.999)").trainings()
    assert "(0.9,0.999)" in models["models/muse"]


@pytest.mark.parametrize(
    ("study", "systems", "expected"),
    [
        (
            *("bmt", ("bmt", "bmt-dropout")),
            {"attention_dropout": (0, 0.1), "activation_dropout": (0, 0.1)},
        ),
        (
            *("linformer-slots", ("slots-4", "slots-4-normal")),
            {"linformer_init": ("identity", "normal")},
        ),
    ],
)
def test_a_systems_variant_differs_in_one_thing_alone(study, systems, expected, tmp_path) -> None:
    models = dry_run(STUDIES, tmp_path, study, *MY, *systems).trainings()
    assert list(models) == [f"models/{name}" for name in systems]
    first, second = (words.settings().model for words in models.values())
    different = {key: (first[key], second[key]) for key in first if first[key] != second[key]}
    assert different == expected


@pytest.mark.long
def test_a_study_from_text_to_its_table(tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "out"
    run("fairseq-ext", "corpus", "tatoeba", "--sample", "300,30,30", "--out", text)
    options = (text, "es", "en", "--out", out, "--updates", 12, "--bpe", 200)
    sizes = ("--", "--encoder-layers", 1, "--decoder-layers", 1, "--max-tokens", 2000)
    bash(STUDIES, "bmt", *options, "bmt", *sizes)
    bash(STUDIES, "bmt", *options, "bmt-1-0", *sizes)
    systems = json.loads((out / "compare.json").read_bytes())["systems"]
    updates = {system["name"]: system["updates"] for system in systems}
    assert updates == {"bmt": 12, "bmt-1-0": 12}
    check_pictures(out, "curves", "lengths", "compare")


# The recipe that trains every system on Multi30k to its end
ALL_SYSTEMS = RECIPES / "multi30k_all.sh"
GROUP_1 = ["transformer", "muse", "bmt", "muse-simple", "linformer-32", "linformer-8", "gru"]


def test_every_system_tries_three_rates_and_the_best_goes_on(tmp_path: Path) -> None:
    word_lists = dry_run(ALL_SYSTEMS, tmp_path, "--group", 1, "--jobs", 2)
    trained = word_lists.calls("fairseq-train")
    assert len(trained) == 4 * 8
    for number, name in enumerate([*GROUP_1, "bmt-1"]):
        *tries, last = trained[4 * number : 4 * number + 4]
        assert [words.values("--lr", "--save-dir", "--max-update") for words in tries] == [
            [rate, f"models/{name}/rate-{rate}", "2000"] for rate in ("0.001", "0.002", "0.004")
        ]
        # the best one goes on where it is
        assert last == [word if word != "2000" else "30000" for word in tries[0]]
    assert len(word_lists.calls("fairseq-ext", "average")) == 8
    assert len(word_lists.calls("fairseq-generate")) == 3 * 8


def test_a_dry_run_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = write_lines(tmp_path / "results" / "compare-test.html", [])
    monkeypatch.chdir(tmp_path)
    collecting = ["mkdir", "-p", "results/gru"]  # where the pages of older comparisons are removed
    assert collecting in dry_run(ALL_SYSTEMS, tmp_path, "gru")
    assert page.exists()


def test_a_translation_by_another_engine_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "models/gru@2"
    for name in ("model", "test"):
        write_lines(folder / ".stages" / name, [])
    log = ["+ fairseq-generate bin --engine fairseq -"]
    write_lines(folder / "test" / "generated.txt.log", log)
    script = f"""source "{RECIPES}/all_systems.sh"; cd {tmp_path}
        tries=() chosen=(gru@2); list_steps; echo "${{steps[@]}}" """
    assert bash("-c", script).stdout.strip() == ""
    assert bash("-c", script, ENGINE="native").stdout.strip() == "gru@2 test"


def test_settings_are_the_literatures(tmp_path: Path) -> None:
    names = (*GROUP_1, "bmt-1", "binary", "bmt-6", "binary-linformer", "ternary")
    word_lists = dry_run(ALL_SYSTEMS, tmp_path, *names, "--rates", "0.002")
    for folder, words in word_lists.trainings().items():
        cfg = words.settings()
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
    options = ("bmt-6@2", "--rates", "0.002,0.004", "--updates", 9000)
    word_lists = dry_run(ALL_SYSTEMS, tmp_path, *options)
    models = word_lists.trainings()
    names = list(dict.fromkeys(folder.split("/")[1] for folder in models))
    assert names == ["bmt", "bmt-1", "bmt-6", "bmt@2", "bmt-1@2", "bmt-6@2"]
    assert [folder for folder in models if "@" in folder] == [
        f"models/{name}@2/rate-0.002" for name in ("bmt", "bmt-1", "bmt-6")
    ]
    second = models["models/bmt-6@2/rate-0.002"]
    starts = ["2", "models/bmt@2/average.pt", "models/bmt-1@2/average.pt"]
    assert second.values("--seed", "--teacher", "--finetune-from-model") == starts
    comparison = word_lists.calls("fairseq-ext", "compare")[0]
    bmt = "bmt=models/bmt/test/generated.txt,models/bmt@2/test/generated.txt,checkpoint="
    assert comparison[3].startswith(bmt)


def test_a_gpu_takes_the_literatures_batches_in_bf16(tmp_path: Path) -> None:
    models = dry_run(ALL_SYSTEMS, tmp_path, "--device", "gpu", "muse").trainings()
    assert list(models) == [f"models/muse/rate-{rate}" for rate in ("0.0025", "0.005", "0.01")]
    words = models["models/muse/rate-0.0025"]
    cfg = words.settings()
    assert (cfg.dataset.max_tokens, cfg.optimization.update_freq) == (4096, [2])
    assert (cfg.lr_scheduler.warmup_updates, cfg.optimization.max_update) == (2000, 8000)
    assert cfg.common.bf16


def test_all_systems_in_their_order(tmp_path: Path) -> None:
    models = dry_run(ALL_SYSTEMS, tmp_path).trainings()
    names = list(dict.fromkeys(folder.split("/")[1] for folder in models))
    assert names[:8] == [*GROUP_1, "bmt-1"]
    seeds = ["transformer@2", "muse@2", "transformer@3", "muse@3"]
    assert names[8:15] == ["bmt-6", "bmt-1-plain", "binary", *seeds]
    assert {"gru@3", "bmt-6@2", "binary-muse", "binary-linformer"} < set(names[15:])
    assert names[-6:] == [
        *("ternary", "ternary@2", "ternary@3"),
        *("ternary-muse", "ternary-muse@2", "ternary-muse@3"),
    ]
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


@pytest.mark.long
def test_stopped_by_ctrl_c_it_goes_on_to_the_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = (ALL_SYSTEMS, "--jobs", 2, "--out", out)
    running = start(*command, stderr=subprocess.PIPE, text=True)
    wait_for((out / "models/bmt/rate-0.002/train.log").exists, running)
    os.kill(running.pid, signal.SIGINT)  # only the recipe: it has to stop its children itself
    output = running.communicate(timeout=120)[1]
    assert running.returncode == 130
    assert "the same command again" in output
    folders = [process.resolve() for process in Path("/proc").glob("[0-9]*/cwd")]
    assert out not in folders  # no process works there any more

    done = bash(*command)
    assert "bmt-1" in done.stdout
    rows = json.loads((out / "systems.json").read_bytes())
    assert set(rows["rates"]) == {"bmt", "bmt-1"}
    for row in rows["systems"]:
        assert row["updates"] == 16
        assert row["ended"] == "all updates"
        assert set(row["tests"]) == {"test", "test_2017_flickr"}
        assert row["machine"]["processor"]
        assert f"rate={rows['rates'][row['system']]['rate']}" in row["settings"]
    trained = [(row["system"], row["seed"]) for row in rows["systems"]]
    assert trained == [("bmt", 1), ("bmt-1", 1), ("bmt", 2)]
    systems = json.loads((out / "compare-test.json").read_bytes())["systems"]
    assert [system["scores"]["BLEU"]["runs"] for system in systems] == [2, 1]
    check_pictures(out, "curves", "lengths", "compare-test")
    log = (out / "models/bmt-1/train.log").read_text(encoding="utf-8")
    assert "'teacher': 'models/bmt/average.pt'" in log
    second_run = bash(*command)
    assert "fairseq-train" not in second_run.stderr
    assert "fairseq-generate" not in second_run.stderr
