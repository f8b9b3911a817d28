"""Options without effect are named; `test_option_effects.py` shows that all others have one."""

import inspect
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq import options, tasks

from fairseq_ext.plugin.checks import arguments
from fairseq_ext.utils.errors import ConfigError
from tests.commands.test_option_effects import PARSERS, actions, parser
from tests.support.harness import fairseq, write_lines


def test_what_is_named_is_an_option() -> None:
    by_command = {command: set(actions(command)) for command in PARSERS}
    for name, commands in arguments.IGNORED.items():
        assert all(name in by_command[command] for command in commands), name
    names = set().union(*by_command.values())
    for name, others in (*arguments.ONLY_WITH.items(), *arguments.NOT_WITH.items()):
        assert {name, *others} <= names
    assert names >= arguments.ONLY_IN_TASK.keys()


SCORING, IN_TASK = "with `--score-reference`", "in this task"
BART = "--task translation_from_pretrained_bart"


@pytest.mark.parametrize(
    ("command", "words", "ignored"),
    [
        ("generate", "--save-interval 3", {"save-interval": "here"}),
        ("generate", "--beam 4 --sampling --sampling-topk 3", {}),
        ("generate", "--sampling-topk=3", {"sampling-topk": "without `--sampling`"}),
        ("train", "--fp16-init 4", {"fp16-init": "without `--fp16` or `--memory-efficient-fp16`"}),
        ("generate", "--iter-decode-max-iter 4", {"iter-decode-max-iter": IN_TASK}),
        ("train", "--gen-subset test --patience 2", {"gen-subset": "here"}),
        ("train", "--tie-adaptive-w", {"tie-adaptive-w": "without `--adaptive-softmax-cutoff`"}),
        ("train", "--eval-bleu-detok moses", {"eval-bleu-detok": "without `--eval-bleu`"}),
        ("train", "--disable-validation --patience 3", {"patience": "with `--disable-validation`"}),
        (
            "generate",
            "--lenpen 2 --score-reference --unnormalized",
            {"lenpen": SCORING, "unnormalized": SCORING},
        ),
        ("train", "--tie-adaptive-w --adaptive-softmax-cutoff 10,20", {}),
        ("train", "--adaptive-input", {"adaptive-input": IN_TASK}),
        ("train", f"{BART} --truncate-source", {"truncate-source": IN_TASK}),
        ("train", f"{BART} --num-batch-buckets 4", {"num-batch-buckets": IN_TASK}),
        ("train", "--task translation_lev --load-al", {"load-al": IN_TASK}),
        ("train", "--truncate-source --num-batch-buckets 4", {}),
        ("preprocess", "--seed 3 --fp16", {"fp16": "here"}),
        ("pytest", "--seed 3", {}),
    ],
)
def test_an_option_without_effect_is_named(command, words, ignored, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"/bin/fairseq-{command}", "bin", *words.split()])
    full = parser(command if command in PARSERS else "train")
    arguments.name_ignored(full, full.parse_known_args(sys.argv[1:])[0])
    printed = [line for line in capsys.readouterr().err.splitlines() if "--seed" not in line]
    lines = [f"`--{name}` has no effect {why}." for name, why in ignored.items()]
    assert printed == [f"fairseq-{command}: {line}" for line in lines]


@pytest.mark.parametrize("task", arguments.TABLES["not in task"])
def test_a_task_does_not_read_what_is_named(task: str) -> None:
    names = arguments.TABLES["not in task"][task].split()
    stock, derived = (
        inspect.getsource(tasks.TASK_REGISTRY[name].load_dataset) for name in ("translation", task)
    )
    assert all(name in stock for name in names)
    assert not any(name in derived for name in names)


@pytest.mark.parametrize(("schedule", "is_named"), [("fixed", True), ("cosine", False)])
def test_the_factor_of_a_rate_that_never_falls_is_named(schedule, is_named, monkeypatch, capsys):
    words = ["bin", "--arch", "lstm", "--lr-scheduler", schedule, "--lr-shrink", "0.5"]
    monkeypatch.setattr(sys, "argv", ["fairseq-train", *words])
    options.parse_args_and_arch(options.get_training_parser())
    line = "`--lr-shrink` has no effect without `--force-anneal`."
    assert (line in capsys.readouterr().err) == is_named


@pytest.mark.parametrize(
    ("command", "name"),
    [(command, name) for name, commands in arguments.REFUSED.items() for command in commands],
)
def test_an_option_that_fails_is_refused(command, name, monkeypatch):
    words = [f"/bin/fairseq-{command}", "bin", f"--{name.replace('_', '-')}"]
    monkeypatch.setattr(sys, "argv", words)
    fault = f"`{words[2]}` does not work with fairseq-{command}; leave it out"
    with pytest.raises(ConfigError, match=fault):
        arguments.name_ignored(parser(command), Namespace(task="translation"))


def test_a_language_that_the_data_folder_does_not_have_is_refused(tmp_path: Path) -> None:
    """fairseq would take both languages from the folder's files if only one is given."""
    (tmp_path / "train.src-tgt.src.idx").touch()
    for side in ("src", "tgt"):
        write_lines(tmp_path / f"dict.{side}.txt", ["a 3", "b 2"])
    assert tasks.setup_task(Namespace(task="translation", data=str(tmp_path), source_lang="src"))
    with pytest.raises(ConfigError, match="holds src-tgt, so `--target-lang de` is wrong"):
        tasks.setup_task(Namespace(task="translation", data=str(tmp_path), target_lang="de"))


def test_commands_name_what_has_no_effect(tmp_path: Path) -> None:
    for side in ("src", "tgt"):
        write_lines(tmp_path / f"train.{side}", ["1 2 3"] * 3)
    words = ("-s", "src", "-t", "tgt", "--trainpref", tmp_path / "train")
    words = (*words, "--destdir", tmp_path / "bin", "--optimizer", "adam")
    done = fairseq("preprocess", *words)
    assert "fairseq-preprocess: `--optimizer` has no effect here." in done.stderr
