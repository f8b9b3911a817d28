"""The command ``fairseq-ext`` itself: help, laziness, errors. What it calls is tested elsewhere."""

import argparse
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from fairseq_ext import cli, commands
from fairseq_ext.base import wings
from fairseq_ext.version import __version__
from tests.support.harness import BIN, REPO, ended, leaves_no_trace, run, write_lines


def parsers(parser):
    """Every parser below ``parser``, itself included."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


def test_every_option_and_command_has_help():
    all_parsers = list(parsers(cli.build_parser()))
    assert len(all_parsers) > 12
    for parser in all_parsers:
        assert parser.description
        assert "%%" not in parser.format_help(), parser.prog
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                listed = {action.choices[choice.dest] for choice in action._choices_actions}
                assert listed == set(action.choices.values())  # a corpus has the help of all
                assert all(choice.help for choice in action._choices_actions)
            else:
                assert action.help, f"{parser.prog} {action.dest}"


def test_a_list_may_be_given_in_several_options() -> None:
    """argparse alone would keep the last one and forget the others."""
    lists = [
        action
        for parser in parsers(cli.build_parser())
        for action in parser._actions
        if action.option_strings and action.nargs in ("+", "*")
    ]
    assert len(lists) > 7
    assert {type(action) for action in lists} == {argparse._ExtendAction}
    words = ["translate", "--path", "a", "b", "--path", "c", "--input", "x", "--input", "y", "z"]
    args = cli.build_parser().parse_args(words)
    assert [*map(str, args.path), *map(str, args.input)] == ["a", "b", "c", "x", "y", "z"]
    assert cli.build_parser().parse_args(words[:4]).input is None
    words = ["translate", "--path", "a", "--constraints"]
    assert cli.build_parser().parse_args(words).constraints == "ordered"


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['fairseq-ext', '--help']\n"
        "from fairseq_ext.cli import main\n"
        "try: main()\n"
        "finally: print('HEAVY', {'torch', 'fairseq', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    assert "HEAVY set()" in run(sys.executable, "-c", code, cwd=REPO).stdout


def test_every_module_of_a_command_is_in_the_help_below_its_group():
    shown = cli.build_parser().format_help()
    folders = (REPO / "fairseq_ext").glob("**/commands/")
    modules = {path for folder in folders for path in folder.glob("*.py")}
    adding = {path for path in modules if "def add(commands: " in path.read_text(encoding="utf-8")}
    command_files = {
        Path(importlib.import_module(command.module).__file__): command
        for command in commands.all_commands()
    }
    assert command_files.keys() == adding
    for command in command_files.values():
        assert re.search(rf"^{command.group}:\n(  .*\n)*  {command.name} ", shown, re.MULTILINE)


def test_every_command_has_an_example_that_it_takes():
    parser = cli.build_parser()
    for command in parsers(parser):
        if command is parser:
            continue
        assert command.example, f"{command.prog} needs an example"
        assert f"example:\n  {command.example}\n" in command.format_help()
        program, *words = shlex.split(command.example)
        if program == "fairseq-ext" and "--help" not in words:
            assert command.example.startswith(command.prog.removesuffix(" iwslt14_de_en"))
            assert parser.parse_args(words).run
        else:
            assert command.prog in command.example or command.prog == "fairseq-ext user-dir"
    assert len(list(parsers(parser))) > 20


@pytest.mark.parametrize(
    "names", ["--src --tgt -o", "--src --tgt --output", "--src-lang --tgt-lang --out"]
)
def test_older_names_of_options_are_the_same_options(names: str):
    src, tgt, out = names.split()
    words = ["corpus", "pairs", "a.tsv", src, "de", tgt, "en", out, "text"]
    args = cli.build_parser().parse_args(words)
    assert (args.src_lang, args.tgt_lang, args.out) == ("de", "en", Path("text"))


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("fairseq-ext transl", ["translate "]),
        ("fairseq-ext translate --engine native-", ["native-bf16", "native-int8"]),
        ("fairseq-ext corpus pairs --tgt-", ["--tgt-lang "]),
    ],
)
def test_the_shell_completes_commands_options_and_values(
    line: str, completions: list[str], tmp_path: Path
):
    pytest.importorskip("argcomplete")
    answer = tmp_path / "answer"
    settings = {"": "1", "_IFS": "\n", "_STDOUT_FILENAME": str(answer)}
    variables = {f"_ARGCOMPLETE{name}": value for name, value in settings.items()}
    variables |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    run(sys.executable, "-c", "from fairseq_ext.cli import main; main()", cwd=REPO, **variables)
    assert answer.read_text().splitlines() == completions


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plot", "curves", "--lgo", "a"), "are required: --log, -o/--output. Example: `fair"),
        (("translate", "Hola."), "--path --model is required. Example: `fairseq-ext "),
        (("plot", "curves", "-o", "a"), "are required: --log. Example: `fairseq-ext plot"),
        (
            ("corpus", "pairs", "a", "b", "--src", "a", "--tgt", "b", "-o", "c"),
            "arguments: b. `fairseq-ext corpus pairs --help`",
        ),
        (("plot", "curves", "--log", "a=b", "-o", "c", "--sytem", "d"), "`fairseq-ext plot curves"),
        (("score", "--ref", "a", "--hyp", "b", "--tgt", "ja"), "mean `--language-pair SRC-TGT`?"),
        (("models", "--tgt", "ja"), "`fairseq-ext models --help` lists the options."),
        (("translate", "--model", "m", "--beem", "4"), "did you mean `--beam`?"),
        (("translat", "--model", "m"), "but is `translat`; did you mean `translate`"),
    ],
)
def test_advice_names_options_of_the_command_alone(words, message: str):
    status, _, printed = ended(*words)
    assert status == 2
    assert printed.startswith("fairseq-ext: error: ")
    assert printed.count("\n") == 1
    assert message in printed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], cli.build_parser().format_help()),
        (["help"], "usage: fairseq-ext [-h]"),
        (["help", "models"], "usage: fairseq-ext models"),
        (["version"], f"fairseq-ext {__version__}\n"),
        (["--version"], f"fairseq-ext {__version__}\n"),
        (["models"], "tatoeba-es-en "),
    ],
)
def test_words_that_people_try(words: list[str], text: str):
    code, output, _ = ended(*words)
    assert code == 0
    assert text in output


GATES = (  # of a command of MUSE
    ("plot gates text -o out", "text is not a checkpoint"),
    ("plot gates text -o absent/out.png", "`--output absent/out.png`"),
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("hypotheses absent.txt -o out", "absent.txt"),
        ("hypotheses text -o out", "no hypotheses"),
        ("hypotheses text -o out --expected 0", "`--expected` must be at least 1"),
        (
            "score --ref text --hyp text -l zh",
            "`--language-pair` must be SRC-TGT, such as en-de, but is `zh` instead.",
        ),
        ("score --ref text --hyp absent.txt", "absent.txt"),
        ("score --ref text --hyp shorter", "`shorter` has 1 lines, but `text` has 2"),
        ("score --ref text --hyp text --tokenized-ref text", "Give both"),
        ("score --ref text --hyp text --ref text", "`--ref` is given twice"),
        ("score --ref text --hyp text --detokenize de", "--generated"),
        ("score --ref text --generated g --tokenized-hyp text", "goes with"),
        ("score --ref text --hyp text --generated g", "not allowed with argument --hyp. Example"),
        ("score --ref text --hyp", "argument --hyp: expected one argument. Example: `"),
        ("average --dir . -o out", "--last-epochs"),
        ("average --inputs text --best 2 -o out", "--last-epochs"),
        ("average --inputs text -o out", "text is not a checkpoint"),
        (
            "average --dir . --last-epochs 2 -o out",
            "holds 0 of 2 checkpoints named `checkpointEPOCH.pt`",
        ),
        ("average --dir absent --best 2 -o out", "`absent` is not a folder"),
        ("plot curves --log =text -o out", "NAME=FILE"),
        ("plot curves --log a=text --log a=text -o out", "of its own"),
        ("plot curves --log text -o out", "holds no loss"),
        ("plot alignment one.gen --index 7 -o out", "`--index 7`"),
        ("plot alignment one.gen --index 0 -o out", "soft"),
        ("score --ref text --hyp text --split-compounds", "--tokenized-ref"),
        ("hypotheses one.gen -o absent/out", "absent/out"),
        ("score --ref text --hyp text --json absent/out", "mkdir -p "),
        *(GATES if "muse" in wings.names() else ()),
    ],
)
def test_errors_are_one_message_and_leave_nothing(arguments, message, tmp_path):
    write_lines(tmp_path / "text", ["a b c", "d e f"])
    write_lines(tmp_path / "shorter", ["a b c"])
    write_lines(tmp_path / "one.gen", ["S-0\ta", "H-0\t-0.5\tb"])
    leaves_no_trace(tmp_path, message, *arguments.split())


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_a_closed_stream_is_refused(closed: str):
    done = run("sh", "-c", f"{BIN}/fairseq-ext models {closed}", ok=False)
    message = "fairseq-ext: error: a standard stream is closed; connect it to /dev/null instead.\n"
    assert (done.stdout, done.stderr) == ("", "" if closed == "2>&-" else message)


@pytest.mark.system
@pytest.mark.parametrize("words", [["models"], ["help", "translate"]])
def test_signs_that_a_terminal_lacks_are_shown_escaped(words: list[str]):
    shown = run("fairseq-ext", *words, PYTHONIOENCODING="ascii").stdout
    assert ("\\u2192" in shown) == ("models" in words)
    assert ("\\u03b1" in shown) == ("help" in words)
