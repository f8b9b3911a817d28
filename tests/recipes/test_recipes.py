"""The recipes as a user runs them, and the functions that they share."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from fairseq_ext.corpora import own_text
from tests.support.harness import (
    REPO,
    leaves_no_trace,
    names,
    read_lines,
    run,
    wait_for,
    write_lines,
    write_sides,
)
from tests.support.recipes import (
    ENVIRONMENT,
    RECIPES,
    bash,
    check_pictures,
    check_repeat,
    dry_run,
    library,
    start,
)

QUICKSTART = RECIPES / "quickstart.sh"
TINY = ("--arch", "gru_tiny")


def test_a_finished_stage_is_skipped_and_an_unfinished_one_repeated(tmp_path: Path) -> None:
    script = f"""
        work() {{ echo worked; [[ -e go ]]; }}
        open_run "{tmp_path}/a run" x=1
        stage one work
        stage two echo later
    """
    first = library(script, ok=False)
    assert first.stdout == "worked\n"
    assert "stopped in stage `one`" in first.stderr
    assert "the same command again" in first.stderr
    (tmp_path / "a run" / "go").touch()
    assert library(script).stdout == "worked\nlater\n"
    assert library(script).stdout == ""


def test_other_settings_start_a_new_run_and_keep_the_former_one(tmp_path: Path) -> None:
    script = 'open_run "{}/run" "updates={}"\nstage one touch "made{}"'
    for updates in (1, 2, 3):
        library(script.format(tmp_path, updates, updates))
    assert names(tmp_path) == ["run", "run.old-1", "run.old-2"]
    assert "made3" in names(tmp_path / "run")
    assert "made1" not in names(tmp_path / "run")
    assert "made1" in names(tmp_path / "run.old-1")
    output = library(script.format(tmp_path, 4, 4)).stderr
    assert "< updates=3" in output
    assert "> updates=4" in output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "no run of this recipe"),
        ("a:b", "contains a colon or a comma"),
        ("a,b", "contains a colon or a comma"),
    ],
)
def test_a_folder_that_cannot_be_a_run_is_left_alone(name, message, tmp_path: Path) -> None:
    write_lines(tmp_path / "thesis.tex", ["do not touch"])
    output = library(f'open_run "{tmp_path}/{name}" x=1', ok=False).stderr
    assert message in output
    assert names(tmp_path) == ["thesis.tex"]


@pytest.mark.skipif(not shutil.which("flock"), reason="needs flock")
def test_a_slash_at_the_end_of_a_folder_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for setting in ("one", "two"):
        library(f'cd {tmp_path}; open_run "$(absolute link/)" {setting}')
    assert (tmp_path / "link" / "settings.txt").read_text().strip() == "two"
    assert library("absolute /").stdout == "/\n"


def test_two_processes_never_work_in_one_run_at_once(tmp_path: Path) -> None:
    script = f'open_run "{tmp_path}/run" x=1; echo "begin $$" >>log; sleep 0.5; echo "end $$" >>log'
    command = ["bash", "-c", f'source "{RECIPES}/lib.sh"\n{script}']
    processes = [subprocess.Popen(command, env=ENVIRONMENT) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    words = [line.split() for line in (tmp_path / "run" / "log").read_text().splitlines()]
    assert [word for word, _ in words] == ["begin", "end"] * 2
    assert words[0][1] == words[1][1] != words[2][1] == words[3][1]


@pytest.mark.parametrize("status", [0, 7])
def test_quietly_hides_output_only_of_success(tmp_path: Path, status: int) -> None:
    script = f"cd {tmp_path}; quietly log bash -c 'echo text; exit {status}'"
    output = library(script, ok=status == 0).stderr
    assert ("\ntext\n" in output) == bool(status)
    assert (tmp_path / "log").read_text() == "text\n"


@pytest.mark.parametrize("status", [0, 7])
def test_translation_shows_its_progress_on_the_terminal_alone(tmp_path: Path, status: int) -> None:
    script = f"""cd {tmp_path}
        fairseq-generate() {{
            echo H-0
            for n in 2 3; do echo "INFO:fairseq.logging.progress_bar::     $n / 3 wps=7" >&2; done
            return {status}
        }}
        generate model out --beam 5"""
    output = library(script, ok=status == 0).stderr
    assert "out: translated batch 2 / 3" in output
    assert "out: translated batch 3 / 3" not in output  # ten seconds have not passed
    assert (tmp_path / "out.log").read_text().count(" / 3 wps=7\n") == 2
    assert (tmp_path / ("out.tmp" if status else "out")).read_text() == "H-0\n"


def test_commands_are_shown_so_that_they_can_be_pasted(tmp_path: Path) -> None:
    output = library("show printf '%s ' \"it's\" 'a  $HOME' '>' out").stderr
    assert output.startswith("+ printf ")
    bash("-c", f"cd {tmp_path}; {output[1:]}")
    assert (tmp_path / "out").read_text() == "it's a  $HOME "
    output = library("show train --classes '$(sort -u x | wc -l)' 'a b' '$x'").stderr
    assert output == '+ train --classes "$(sort -u x | wc -l)" a\\ b \\$x\n'


def test_an_environment_of_another_clone_does_not_count(tmp_path: Path) -> None:
    shutil.copytree(RECIPES, tmp_path / "recipes")
    script = f'source "{tmp_path}/recipes/lib.sh"; unusable'
    assert "another copy" in bash("-c", script, ok=False).stdout
    assert "no no_such_module" in library("unusable no_such_module", ok=False).stdout


def test_doctor_is_asked_once_and_again_after_a_change(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "fairseq-ext").write_text(f"#!/bin/sh\necho asked >>{tmp_path}/asked\n")
    (programs / "fairseq-ext").chmod(0o755)
    environment = {"PATH": f"{programs}:{ENVIRONMENT['PATH']}", "VIRTUAL_ENV": str(tmp_path)}

    def call_count() -> int:
        library("healthy", **environment)
        return (tmp_path / "asked").read_text().count("asked")

    assert [call_count(), call_count()] == [1, 1]
    os.utime(tmp_path / ".fairseq-ext-doctor", (0, 0))  # older than every package
    assert call_count() == 2
    (programs / "fairseq-ext").write_text("#!/bin/sh\nexit 1\n")
    assert call_count() == 2  # nothing has changed, as far as anyone can see
    (tmp_path / ".fairseq-ext-doctor").unlink()
    library("healthy", ok=False, **environment)
    assert not (tmp_path / ".fairseq-ext-doctor").exists()


WRONG_OPTIONS: dict[str, list[tuple[list[str], str]]] = {
    "quickstart.sh": [
        (["--updates", "many"], "`--updates` must be a positive whole number, but is `many`."),
        (["--bpe"], "`--bpe` needs a value"),
        (["--layers", "2"], "`--layers` is not an option"),
        (["--src", "en"], "both `en`"),
        (["--tokenize"], "`--tokenize` goes with `--data`."),
        (["--data", "/no/such/folder"], "`--data` must be a folder"),
    ],
    "bmt/wmt17_de_en.sh": [
        (["--preset", "bmt-9"], "`--preset` must be a row of Table 1"),
        (["--preset", "bmt-2", "--stages", "9,9"], "`--stages` must have 3 numbers for `bmt-2`"),
        (["--stages", "9"], "`--stages` must have 2 numbers for `bmt-1`"),
        (["--stages", "9,x"], "`--stages` must be up to three numbers of updates"),
        (["--stages", "9000,4000"], "`--warmup` must be less than the 4000 updates of a stage"),
        (["--teacher", "absent.pt"], "absent.pt does not exist"),
        (["--teacher", __file__, "--kd"], "`--teacher` does not go with `--kd`"),
        (["--", "--max-update=9"], "`--max-update` must not follow `--`"),
    ],
    "bmt/ablations.sh": [
        (["my", "es", "en", "--only", "x"], "`--only` must be scale or output"),
        (["my", "es", "en", "--scales", "1,x"], "`--scales` must be whole numbers"),
        (["my", "es", "en", "--outputs", "plain,x"], "`--outputs` must be of plain,scale,layer,"),
        (["my", "es", "en", "--stages", "5,5"], "`--stages` must be three numbers"),
        (["my", "es", "en", "--subwords", "x"], "`--subwords` must be bpe"),
        (["my", "es", "en", "--subwords", "none"], "`--subwords none` does not go with"),
    ],
    "bmt/scaling_law.sh": [
        (["my", "es", "en", "--depths", "6"], "`--depths` must be numbers of layers"),
        (["my", "es", "en", "--updates", "5"], "`--updates` must be two numbers"),
        (["my", "es", "en", "--eval", "x"], "`--eval` must be NAME=PREFIX"),
        (["my", "es", "en", "--eval", "test=x"], "the name `test` is taken"),
        (["my", "es", "en", "--subwords", "letters"], "`--subwords` must be bpe"),
    ],
    "compare.sh": [
        (["my", "de", "en", "muse", arch], f"ARCH `{arch}` must be NAME=ARCHITECTURE")
        for arch in ("", "=muse", "a/b=muse")
    ],
    "compare_all.sh": [
        (["lstm"], "`lstm` must be one of transformer gru linformer muse muse-simple bmt binary"),
        (["gru", "--baseline", "muse"], "`--baseline` must be one of the models, but is `muse`"),
        (["--data", str(REPO)], "endings .en and .de of the two languages; `--src` and `--tgt`"),
        (["--metric", "bleurt:x"], "`--metric` must be comet:MODEL, but is `bleurt:x`"),
        (["--src", "de", "gru"], "`--src` goes with `--data`, which is missing"),
    ],
    "linformer/classify.sh": [
        ([], "DATA_DIR is missing"),
        (["/tmp", "/var"], "give one DATA_DIR, not both"),
    ],
    "linformer/wmt14_en_de.sh": [
        ([], "`--data` must name the folder or .zip"),
        (["--data", "."], "give `--vocabulary` and `--merges`, or `--download`."),
        (["--data", ".", "--merges", "x"], "give `--vocabulary` and `--merges`"),
        (["--data", ".", "--download", "x", "--merges", "y"], "`--download` goes without"),
        (["--data", "/no/such", "--download", "x"], "`--data /no/such` cannot be read"),
        (["--", "--lr", "1"], "`--lr` must not follow `--`"),
        (["--", "--dropout", "0", "--update-freq", "2"], "`--update-freq` must not follow `--`"),
    ],
    "multi30k_all.sh": [
        (["lstm"], "`lstm` must be a system"),
        (["muse@0"], "`muse@0` must be a system, or one with @SEED"),
        (["--group", "5"], "`--group` must be from 1 to 4, but is `5`"),
        (["--device", "tpu"], "`--device` must be cpu or gpu, but is `tpu`"),
        (["--rates", "0.1,x"], "`--rates` must be numbers"),
    ],
    "muse/iwslt14_de_en.sh": [
        (["--updates", "4000"], "`--warmup` must be less than the 4000 updates"),
        (["--bpe", "-1"], "`--bpe` must be a whole number"),
        (["--against", "x"], "`--against` must be NAME=GENERATED"),
        (["--against", "muse_iwslt_de_en=x"], "with another name than muse_iwslt_de_en"),
        (["--against", "x=absent.txt"], "absent.txt does not exist"),
        (["--", "--max-update=9"], "`--max-update` must not follow `--`"),
    ],
    "real_en_de.sh": [
        (["muse"], "`--from` must be the folder with the texts"),
        (["--corpus", "wmt"], "`--corpus` must be real or multi30k, but is `wmt`"),
    ],
    "back_translation.sh": [
        (["--method", "noise"], "`--method` must be beam, sampling or top10"),
        (["--mono", "none.txt"], "`--mono`: none.txt does not exist"),
        (["--updates", "39", "--warmup", "9"], "`--average` must be at most a quarter"),
    ],
    "sequence_distillation.sh": [
        (["--copies", "x"], "`--copies` must be a whole number"),
        (["--ratio", "0"], "`--ratio` must be at least 1"),
    ],
    "finetune.sh": [(["--model", "m"], "`--model`, `--data`, `--src` and `--tgt` are needed")],
    "tatoeba.sh": [
        ([], "`--archive` must be the file spa-eng.zip"),
        (["--archive", __file__, "fconv"], "`fconv` must be a model that --help lists"),
        (["gru", "muse"], "one model at a time"),
        (["--tgt", "fr"], "`--src` and `--tgt` must be es and en"),
        (["--warmup", "15000"], "`--warmup` must be less than the 15000 updates"),
    ],
    "studies.sh": [
        (["bmt", "my", "es"], "needs STUDY, DATA_DIR, SRC and TGT"),
        (["layers", "my", "es", "en"], "`layers` must be bmt, linformer-slots"),
        (["muse-rows", "my", "es", "en", "kernel-5"], "`kernel-5` must be a system of muse-rows"),
        (["muse-rows", "my", "es", "en", "--updates", "9"], "`--updates` must be more than 10"),
    ],
}


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [(recipe, *row) for recipe, rows in WRONG_OPTIONS.items() for row in rows],
)
def test_wrong_options_are_named(recipe: str, options: list[str], message: str, tmp_path) -> None:
    done = bash(RECIPES / recipe, "--out", tmp_path / "run", *options, ok=False, SMOKE="0")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "before", "after"),
    [
        ("quickstart.sh", ["--data"], ["--src", "es", "--tgt", "en"]),
        ("compare_all.sh", ["--data"], ["--src", "es", "--tgt", "en"]),
        ("compare.sh", [], ["es", "en", "lstm"]),
        ("bmt/table1.sh", [], ["es", "en"]),
        ("bmt/scaling_law.sh", [], ["es", "en"]),
    ],
)
def test_text_in_other_languages_is_refused_at_once(recipe, before, after, tmp_path) -> None:
    data = write_sides(tmp_path / "data", {"en": ["a"], "de": ["b"]})
    of_english = [word if word != "es" else "en" for word in after]
    for words, message in (
        (after, f"`{data}` has no file `train.es`"),
        (of_english, "both `en`; choose two"),
    ):
        output = bash(RECIPES / recipe, *before, data, *words, ok=False).stderr
        assert message in output
        assert len(output.splitlines()) == 1


def test_a_misspelt_architecture_is_refused_before_the_text_is_made(tmp_path: Path) -> None:
    for words in (["gru_atention"], ["gru_attention", "--", "--max-tokens", "many"]):
        done = bash(QUICKSTART, "--out", tmp_path / "run", "--arch", *words, ok=False)
        message = done.stderr.splitlines()[-1]
        expected = "did you mean `gru_attention`?" if len(words) == 1 else "invalid int value"
        assert message.startswith("fairseq-train: error: ")
        assert expected in message
        assert not (tmp_path / "run").exists()


def test_the_sentences_of_the_picture_are_chosen_by_commands_that_can_be_pasted(tmp_path):
    output = bash(QUICKSTART, "--out", tmp_path, DRY_RUN="1").stderr
    pasted = "\n".join(line[2:] for line in output.splitlines() if line.startswith("+ awk "))
    middling = "a b c d e f g h"
    for lines, expected in (
        (["a b", middling, "x", f"{middling} i", middling], ["1", "3"]),
        (["a b", "c"], ["0"]),
    ):
        write_lines(tmp_path / "text" / "test.es", lines)
        for side in ("es", "en"):
            write_lines(tmp_path / "bpe" / f"test.{side}", [str(i) for i in range(len(lines))])
        run("bash", "-euc", pasted, cwd=tmp_path)
        for side in ("es", "en"):
            assert (tmp_path / "bpe" / f"picture.{side}").read_text().split() == expected


def test_a_dry_run_prints_every_command_and_does_nothing(tmp_path: Path) -> None:
    options = ("--updates", "77", "--subwords", "none", "--", "--dropout", "0.3")
    shown = dry_run(QUICKSTART, tmp_path, *options)
    programs = {"fairseq-ext", "fairseq-preprocess", "fairseq-train", "fairseq-generate"}
    assert programs < {words[0] for words in shown}
    (words,) = shown.trainings().values()
    assert (words.value("--max-update"), words[-2:]) == ("77", ["--dropout", "0.3"])
    (split,) = shown.calls("fairseq-ext", "subwords")
    assert split[-4:] == ["--kind", "none", "-o", "bpe"]  # without a number of merges
    assert list(tmp_path.iterdir()) == []


def test_bad_text_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data, out = (
        write_sides(tmp_path / "data", {"en": ["a"] * 3, "de": ["b"] * 3}),
        tmp_path / "text",
    )
    write_lines(data / "test.de", ["a", "", "c"])
    words = ("prepare", "--data", data, "--src", "en", "--tgt", "de", "--out", out)
    leaves_no_trace(tmp_path, "test.de, line 2: empty", *words)
    for side in ("en", "de"):
        (data / f"test.{side}").unlink()
    leaves_no_trace(tmp_path, "has no test.en, test.de; a corpus has train, valid and test", *words)


def test_text_is_copied_line_by_line_and_tokenized_only_on_request(tmp_path: Path) -> None:
    # NEL and U+2028 are no line ends here, and entities stay as they are written.
    lines = ["Hi, \u0085 you & I!", "It's\u2028so.", "Grüße"]
    folder = write_sides(tmp_path / "data", {"en": lines, "de": ["a"] * 3})
    own_text.copy_corpus(folder, tmp_path / "plain", "en", "de", False)
    assert read_lines(tmp_path / "plain" / "train.en") == lines
    own_text.copy_corpus(folder, tmp_path / "tokens", "en", "de", True)
    first, _, last = read_lines(tmp_path / "tokens" / "train.en")
    assert first.startswith("Hi , ")
    assert first.endswith("you & I !")
    assert last == "Grüße"


def test_quickstart_killed_in_training_goes_on_and_is_then_complete(tmp_path: Path) -> None:
    out = tmp_path / "my run"
    command = (QUICKSTART, *TINY, "--out", out)
    killed = start(*command)
    wait_for((out / "checkpoints" / "checkpoint_1_8.pt").exists, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (out / ".stages" / "train").exists()

    done = bash(*command, fresh=True)
    assert "binarize: done before" in done.stderr
    assert "update 4:" not in done.stderr
    assert "update 20:" in done.stderr
    results = json.loads((out / "results.json").read_bytes())
    assert results["updates"] == 20
    assert [score["name"] for score in results["scores"][:2]] == ["BLEU", "chrF"]
    assert all("version:" in score["signature"] for score in results["scores"])
    for name in ("BLEU", "chrF", "parameters", "training speed", "wall time"):
        # less than a second of training is too short for a speed
        assert re.search(rf"^{name} +(\d|–)", done.stdout, re.MULTILINE)
    assert done.stdout.count("  translation  ") == 10
    check_pictures(out, "curves", "alignment")

    # The advice at its end translates a sentence.
    advice = done.stdout.partition("Translate a sentence of yours:\n")[2].splitlines()
    assert len(bash("-c", "\n".join(advice[:2])).stdout.splitlines()) == 1

    before = {path: path.stat().st_mtime_ns for path in out.glob("**/*.pt")}
    check_repeat(done, *command)
    assert {path: path.stat().st_mtime_ns for path in out.glob("**/*.pt")} == before


def test_the_papers_protocol_runs_from_text_to_both_scores(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = bash(RECIPES / "gru" / "europarl_es_en.sh", "--arch", "gru_tiny", "--out", out)
    for beam in (1, 5):
        assert f"es → en, gru_tiny, beam {beam}, 30 unseen sentences" in done.stdout
        assert (out / f"beam{beam}" / "results.json").exists()
    train = read_lines(out / "text" / "train.es")
    assert len(train) == 300
    assert all(line == line.lower() and len(line.split()) <= 50 for line in train)
    log = (out / "checkpoints" / "train.log").read_text()
    assert "'batch_size': 32" in log
    assert "'patience': 1" in log


def test_compare_shares_data_and_shows_models_of_several_calls_in_one_table(tmp_path):
    lines = [f"{a} {b}" for a in "abcdef" for b in "ghijkl"]
    data = write_sides(tmp_path / "data", {"en": lines, "de": lines})
    for name in ("valid.en", "valid.de", "test.en", "test.de"):
        write_lines(data / name, lines[:3])
    command = (RECIPES / "compare.sh", data, "en", "de", "--updates", "3", "--bpe", "0")
    command += ("--out", tmp_path / "out")
    bash(*command, "gru_tiny")
    small = "small=lstm --encoder-embed-dim 8 --decoder-embed-dim 8 --decoder-out-embed-dim 8"
    done = bash(*command, f"{small} --encoder-hidden-size 8 --decoder-hidden-size 8")
    assert "binarize: done before" in done.stderr
    results = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [system["name"] for system in results["systems"]] == ["gru_tiny", "small"]
    assert "small" in done.stdout
    done = bash(*command, "gru_tiny", ENGINE="native")  # all speeds of a table are of one engine
    assert "train: done before" in done.stderr
    assert "evaluate: done before" not in done.stderr


@pytest.mark.long
def test_quickstart_averages_where_every_update_ends_an_epoch(tmp_path: Path) -> None:
    """The last checkpoint has a number too, but is averaged once."""
    lines = [f"{first} {second}" for first in ("one", "two", "ten") for second in ("tea", "toe")]
    write_sides(tmp_path, {"en": lines, "de": lines})
    options = ("--data", tmp_path, "--src", "en", "--tgt", "de", "--updates", "3", "--bpe", "5")
    done = bash(QUICKSTART, *TINY, *options, "--out", tmp_path / "run")
    averaged = re.search("--inputs (.*) -o", done.stderr)[1].split()
    assert [Path(name).name for name in averaged] == [
        *("checkpoint_1_1.pt", "checkpoint_2_2.pt", "checkpoint_last.pt")
    ]
    assert json.loads((tmp_path / "run" / "results.json").read_text())["updates"] == 3
