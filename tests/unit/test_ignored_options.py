"""Each option of fairseq's commands is read by its code, or is named as having no effect."""

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fairseq
import fairseq_cli
import pytest
from fairseq import options, tasks

import fairseq_ext
from fairseq_ext.plugin.checks.ignored_options import (
    IGNORED,
    ONLY_TASKS,
    ONLY_WITH,
    REFUSED,
    name_ignored,
)
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import run, write_lines

FAIRSEQ = Path(fairseq.__file__).parent
PARSERS = {
    "train": options.get_training_parser,
    "generate": options.get_generation_parser,
    "interactive": lambda: options.get_generation_parser(interactive=True),
    "preprocess": options.get_preprocessing_parser,
}
TASKS = "fairseq_task translation translation_lev speech_to_text speech_to_speech language_modeling"
DECODING = (
    *(FAIRSEQ / "tasks" / f"{name}.py" for name in TASKS.split()),
    *(FAIRSEQ / f"{name}.py" for name in ("sequence_generator", "utils", "distributed/utils")),
    *(
        FAIRSEQ / f"{name}.py"
        for name in ("models/fairseq_model", "iterative_refinement_generator")
    ),
)
MODULES = {
    "train": [
        path for path in FAIRSEQ.rglob("*.py") if not {"examples", "dataclass"} & {*path.parts}
    ],
    "generate": [*DECODING, FAIRSEQ / "scoring" / "bleu.py"],
    "interactive": DECODING,
    "preprocess": [FAIRSEQ / "binarizer.py", FAIRSEQ / "utils.py", FAIRSEQ / "tasks/__init__.py"],
}
"""Where each command's options are read, besides its own module and the plugin."""
OTHERWISE = {
    "train": {
        *("task", "tokenizer", "bpe", "num_shards"),
        *("encoder_xformers_att_config", "decoder_xformers_att_config", "pad", "eos", "unk"),
    },  # saved, or refused
    "generate": {
        *("engine", "shortlist", "num_shards", "shard_id", "no_progress_bar"),
        "memory_efficient_fp16",  # sets fp16
    },
    "interactive": {"engine", "shortlist", "num_shards", "memory_efficient_fp16"},
    "preprocess": set(),
}
"""Options that the plugin makes work or refuses, or that are stored with the model."""


@cache
def parser(command: str) -> ArgumentParser:
    """The parser of a command, with the options of the task that it has by default."""
    fairseq_ext.register()
    full = PARSERS[command]()
    words = {"train": ["bin", "--arch", "transformer", "--task", "translation"]}
    if command != "preprocess":
        options.parse_args_and_arch(full, words.get(command, ["bin", "--path", "model.pt"]))
    return full


@cache
def source(command: str) -> str:
    own = Path(fairseq_cli.__file__).parent / f"{command}.py"
    return "\n".join(path.read_text("utf-8") for path in (own, *MODULES[command]))


def is_read(command: str, name: str) -> bool:
    return bool(re.search(rf"\.{name}\b|[\"']{name}[\"']", source(command)))


def stored(parser: ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.dest != "help":
            yield action.dest


@pytest.mark.parametrize("command", PARSERS)
def test_every_option_is_read_or_named(command: str) -> None:
    names = set(stored(parser(command)))
    assert names >= set(IGNORED[command])
    unread = {name for name in names if not is_read(command, name)}
    assert unread - OTHERWISE[command] <= {*IGNORED[command], *REFUSED.get(command, ())}


@pytest.mark.parametrize("command", ["generate", "interactive"])
def test_what_is_named_is_not_read(command: str) -> None:
    """But for names that something else has too."""
    shared = {"criterion", "optimizer", "lr_scheduler", "amp", "bf16", "scoring", "print_step"}
    shared |= {"data_buffer_size", "sacrebleu", "quiet", "num_workers", "profile"}
    shared |= {"no_seed_provided"}  # set again, whatever the option says
    own = (Path(fairseq_cli.__file__).parent / f"{command}.py").read_text("utf-8")
    for name in set(IGNORED[command]) - shared:
        assert not re.search(rf"cfg\.\w+\.{name}\b", own), name


def test_what_needs_another_option_names_one_that_is_there() -> None:
    names = {name for command in PARSERS for name in stored(parser(command))}
    for name, others in ONLY_WITH.items():
        assert {name, *others} <= names
    assert names >= ONLY_TASKS.keys()


@pytest.mark.parametrize("name", ONLY_TASKS)
def test_an_option_of_a_task_is_read_by_it(name: str) -> None:
    modules = [FAIRSEQ / "tasks" / f"{ONLY_TASKS[name]}.py", FAIRSEQ / "models/transformer_lm.py"]
    read = "use_plasma_view" if name == "plasma_path" else name
    code = "\n".join(module.read_text("utf-8") for module in modules)
    assert re.search(rf"\.{read}\b|[\"']{read}[\"']", code)
    assert name not in (FAIRSEQ / "tasks" / "translation.py").read_text("utf-8")


@pytest.mark.parametrize(
    ("command", "words", "lines"),
    [
        ("generate", ["bin", "--save-interval", "3"], ["`--save-interval` has no effect here."]),
        ("generate", ["bin", "--beam", "4", "--sampling", "--sampling-topk", "3"], []),
        (
            "generate",
            ["bin", "--sampling-topk=3"],
            ["`--sampling-topk` has no effect without `--sampling`."],
        ),
        (
            "train",
            ["bin", "--fp16-init", "4", "--patience", "2"],
            ["`--fp16-init` has no effect without `--fp16` or `--memory-efficient-fp16`."],
        ),
        (
            "generate",
            ["bin", "--iter-decode-max-iter", "4"],
            ["`--iter-decode-max-iter` has no effect in this task."],
        ),
        ("train", ["bin", "--gen-subset", "test"], ["`--gen-subset` has no effect here."]),
        (
            "train",
            ["bin", "--tie-adaptive-weights", "--eval-bleu-detok", "moses"],
            [
                "`--tie-adaptive-weights` has no effect without `--adaptive-softmax-cutoff`.",
                "`--eval-bleu-detok` has no effect without `--eval-bleu`.",
            ],
        ),
        ("train", ["bin", "--tie-adaptive-w", "--adaptive-softmax-cutoff", "10,20"], []),
        ("train", ["bin", "--adaptive-input"], ["`--adaptive-input` has no effect in this task."]),
        ("preprocess", ["--seed", "3", "--fp16"], ["`--fp16` has no effect here."]),
        ("pytest", ["--seed", "3"], []),
    ],
)
def test_an_option_without_effect_is_named(
    command: str,
    words: list[str],
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/bin/fairseq-{command}", *words])
    full = parser(command if command in PARSERS else "train")
    name_ignored(full, full.parse_known_args(["bin", *words])[0])
    printed = capsys.readouterr().err.splitlines()
    assert [f"fairseq-{command}: {line}" for line in lines] == [
        line for line in printed if "--seed" not in line
    ]


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command in REFUSED for name in REFUSED[command]]
)
def test_an_option_that_fails_is_refused(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"/bin/fairseq-{command}", "bin", f"--{name.replace('_', '-')}"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(ConfigError, match=f"`{words[2]}` cannot be used here; leave it out"):
        name_ignored(parser(command), Namespace(task="translation"))


def test_a_language_that_the_data_folder_does_not_have_is_refused(tmp_path: Path) -> None:
    """fairseq would take both languages from the folder's files if only one is given."""
    (tmp_path / "train.src-tgt.src.idx").touch()
    for side in ("src", "tgt"):
        write_lines(tmp_path / f"dict.{side}.txt", ["a 3", "b 2"])
    assert tasks.setup_task(Namespace(task="translation", data=str(tmp_path), source_lang="src"))
    with pytest.raises(ConfigError, match="is of src-tgt, so `--target-lang de` is wrong"):
        tasks.setup_task(Namespace(task="translation", data=str(tmp_path), target_lang="de"))


@pytest.mark.system
def test_commands_name_what_has_no_effect(tmp_path: Path) -> None:
    for side in ("src", "tgt"):
        write_lines(tmp_path / f"train.{side}", ["1 2 3"] * 3)
    words = ("-s", "src", "-t", "tgt", "--trainpref", tmp_path / "train", "--destdir")
    done = run(
        "fairseq-preprocess",
        *words,
        tmp_path / "bin",
        "--user-dir",
        fairseq_ext.__path__[0] + "/plugin/fairseq_ext_plugin",
        "--optimizer",
        "adam",
    )
    assert "fairseq-preprocess: `--optimizer` has no effect here." in done.stderr
