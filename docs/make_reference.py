"""Write docs/reference/ from the code: commands, models, tasks, scripts, patches, Python API.

    python docs/make_reference.py            # write the pages
    python docs/make_reference.py --check    # exit status 1 if a page is out of date

The options come from fairseq's registries, from dataclasses and from parsers, so that none can be
missed. `tests/unit/test_pages.py` runs the check.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
REFERENCE = REPO / "docs" / "reference"
NOTE = "<!-- Written by docs/make_reference.py: change the code, then run it again. -->"

PYTHON_API = (
    "fairseq_ext:register",
    "fairseq_ext:load",
    "fairseq_ext.decoding.text_model:Model.translate",
    "fairseq_ext.decoding.text_model:Model.stream",
    "fairseq_ext.decoding.text_model:Model.score",
    "fairseq_ext.decoding.stream:Translation",
    "fairseq_ext.decoding.translator:Translator",
    "fairseq_ext.decoding.translator:Translator.translate",
    "fairseq_ext.decoding.search:Search",
    "fairseq_ext.decoding.search:Candidate",
    "fairseq_ext.text.pipeline:Pipeline",
    "fairseq_ext.text.pipeline:load",
    "fairseq_ext.evaluation.score:score_files",
    "fairseq_ext.evaluation.score:score_generated",
    "fairseq_ext.evaluation.compare:compare",
    "fairseq_ext.checkpoints.averaging:average_checkpoints",
)
"""The public functions and classes, as ``module:name``."""


def cell(text: object) -> str:
    """Return a text in one line, with Markdown's special characters outside code escaped."""
    line = " ".join(str(text).split())
    pieces = line.split("`")
    for i in range(0, len(pieces), 2):  # outside code
        pieces[i] = re.sub(r"([\\*<>])", r"\\\1", pieces[i])
    return "`".join(pieces).replace("|", "\\|")


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    """Return the lines of a Markdown table, and an empty line after it."""
    lines = [head, tuple("---" for _ in head), *(tuple(map(cell, row)) for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def first_paragraph(documented: Any) -> str:
    """Return the first paragraph of an object's docstring in one line, with code as in Markdown."""
    text = (inspect.getdoc(documented) or "").partition("\n\n")[0]
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(text.split())).replace("``", "`")


# ---- commands ------------------------------------------------------------------------------------


def commands_page() -> list[str]:
    """Return the lines of the page of all commands of ``fairseq-ext``, by group."""
    from fairseq_ext import cli, commands

    parsers = children(cli.build_parser())
    lines = ["# Commands", "", "`fairseq-ext COMMAND --help` says the same.", ""]
    group = ""
    for command in commands.all_commands():
        if command.group != group:
            group = command.group
            lines += [f"## {group.capitalize()}", ""]
        lines += command_section(parsers[command.name], 3)
    return lines


def children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Map the names of a parser's subcommands to their parsers."""
    parsers: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers.update(action.choices)
    return parsers


def command_section(parser: argparse.ArgumentParser, level: int) -> list[str]:
    """Return the lines of a command's section: its description, options and subcommands.

    ``level`` is the level of the heading.
    """
    lines = [f"{'#' * level} {parser.prog}", "", cell(parser.description or ""), ""]
    rows = list(options_of(parser))
    if rows:
        lines += table(("option", "default", "meaning"), rows)
    for child in dict.fromkeys(children(parser).values()):  # once, whatever other names it has
        lines += command_section(child, level + 1)
    return lines


def options_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the default and the meaning of each option and argument of a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        values = ",".join(map(str, action.choices or ())) or action.metavar
        value = "" if action.nargs == 0 else f" {values or action.dest.upper()}"
        if action.nargs in ("+", "*"):
            value += "…"
        name = ", ".join(action.option_strings) + value if action.option_strings else value.strip()
        default = action.default
        is_shown = default not in (None, False, argparse.SUPPRESS, "") and action.option_strings
        meaning = parser._get_formatter()._expand_help(action) if action.help else ""
        if action.required and action.option_strings:
            meaning = f"{meaning} (required)"
        yield f"`{name}`", f"`{default}`" if is_shown else "", meaning


# ---- models, tasks -------------------------------------------------------------------------------


def ours(registry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a fairseq registry that are from this package, sorted by name."""
    mine = {k: v for k, v in registry.items() if v.__module__.startswith("fairseq_ext.")}
    return dict(sorted(mine.items()))


def models_page() -> list[str]:
    """Return the lines of the page of models.

    Each model has a table of its architectures with the defaults that they change, and a table of
    its options.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_REGISTRY
    from fairseq.models import MODEL_DATACLASS_REGISTRY as DATACLASSES

    lines = ["# Models", "", "Options of `fairseq-train --arch NAME`, with the model's defaults."]
    lines += ["An architecture is a model with other defaults.", ""]
    for name, model in ours(MODEL_REGISTRY).items():
        lines += [f"## {name}", "", cell(first_paragraph(model)), "", f"`{model.__module__}`", ""]
        changed = []
        for arch in sorted(a for a, m in ARCH_MODEL_REGISTRY.items() if m is model):
            args = argparse.Namespace()
            ARCH_CONFIG_REGISTRY[arch](args)
            changes = {k: v for k, v in sorted(vars(args).items()) if k != "_name"}
            shown = ", ".join(f"`{flag(k)} {v}`" for k, v in changes.items())
            changed.append((f"`{arch}`", shown or "none"))
        lines += table(("architecture", "changed defaults"), changed)
        lines += option_table(fields(DATACLASSES[name]))
    return lines


def flag(name: str) -> str:
    """Return the command-line option for a dataclass's field, such as --lr-scheduler."""
    return f"--{name.replace('_', '-')}"


def option_table(options: Iterable[Field]) -> list[str]:
    """Return the lines of a table of options, which are fields of a dataclass."""
    rows = []
    for field in options:
        default = field.default_factory() if field.default is MISSING else field.default
        if field.name == "_name" or str(default).startswith("${"):
            continue  # no option, or an option of the task
        is_choice = isinstance(field.type, type) and issubclass(field.type, Enum)
        values = ", ".join(f"`{choice.value}`" for choice in field.type) if is_choice else ""
        kind = values or getattr(field.type, "__name__", str(field.type))
        shown_default = getattr(default, "value", default)
        if field.type is bool:
            kind, shown_default = "switch", "on" if default else "off"
        shown = f"`{shown_default}`" if shown_default not in ("", None) else "empty"
        rows.append((f"`{flag(field.name)}`", kind, shown, field.metadata.get("help", "")))
    return table(("option", "values", "default", "meaning"), rows)


def tasks_page() -> list[str]:
    """Return the lines of the page of this package's tasks, criterions and schedules.

    Inherited options are not listed; the page names their class.
    """
    from fairseq.dataclass import FairseqDataclass
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

    kinds = [("task", ours(TASK_REGISTRY), TASK_DATACLASS_REGISTRY)]
    kinds += [
        (flag(kind)[2:], ours(registry["registry"]), registry["dataclass_registry"])
        for kind, registry in sorted(REGISTRIES.items())
    ]
    lines = ["# Tasks, criterions and schedules", ""]
    for kind, entries, dataclasses in kinds:
        for name, cls in entries.items():
            config = dataclasses[name]
            bases = filter(is_dataclass, config.__mro__[1:])
            inherited = {f.name for base in bases for f in fields(base)}
            lines += [f"## --{kind} {name}", "", cell(first_paragraph(cls)), ""]
            parent = config.__mro__[1]
            lines += option_table(f for f in fields(config) if f.name not in inherited)
            if parent is not FairseqDataclass:
                lines += [f"All other options are those of fairseq's `{parent.__name__}`.", ""]
    return lines


# ---- scripts, patches, Python --------------------------------------------------------------------


def scripts_page() -> list[str]:
    """Return the lines of the page with the ``--help`` text of each recipe."""
    recipes = sorted((REPO / "recipes").rglob("*.sh"))
    scripts = [path for path in recipes if '\nmain "$@"; exit' in path.read_text("utf-8")]
    with ThreadPoolExecutor(2) as pool:
        helps = list(pool.map(help_of, scripts))
    lines = ["# Recipes", "", "What each says with `--help`.", ""]
    for path, text in zip(scripts, helps, strict=True):
        lines += [f"## {path.relative_to(REPO)}", "", "```text", text, "```", ""]
    return lines


def help_of(script: Path) -> str:
    """Run a script with ``--help``, and return the text that it prints, 100 columns wide."""
    done = subprocess.run(
        ["bash", script.relative_to(REPO), "--help"],
        cwd=REPO,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def patches_page() -> list[str]:
    """Return the lines of the page of patches, the plugin's changes to functions of fairseq.

    The page also lists options that a command of fairseq accepts without effect.
    """
    from fairseq_ext.plugin import patches
    from fairseq_ext.plugin.checks import arguments

    rows = [(patch.name, patch.kind, patch.reason) for patch in patches.PATCHES]
    lines = ["# Changes to fairseq", ""]
    lines += ["All that the plugin changes in fairseq, in the order in which it is applied."]
    lines += ["Kinds: a `repair` of fairseq, `security` against files of strangers, a `feature` of"]
    lines += ["this plugin, or a `check` that reports a user's mistake in a one-line error.", ""]
    lines += table(("patch", "kind", "without it"), rows)
    lines += ["## By function", ""]
    lines += ["The patches around each function of fairseq, the outermost first.", ""]
    targets = patches.by_target()
    lines += table(
        ("function", "patches"),
        (
            (f"`{target}`", ", ".join(patch.name for patch in rows_of_target))
            for target, rows_of_target in targets.items()
        ),
    )
    lines += ["## Options without effect", ""]
    lines += ["A command accepts these options without reading them. It says so, and goes on.", ""]
    lines += table(
        ("command", "options"),
        (
            (
                f"`fairseq-{command}`",
                ", ".join(
                    as_option(name)
                    for name, commands in sorted(arguments.IGNORED.items())
                    if command in commands
                ),
            )
            for command in arguments.COMMANDS
        ),
    )
    lines += ["These options are read only together with another option:", ""]
    return lines + table(
        ("option", "only with"),
        (
            (as_option(name), " or ".join(map(as_option, others)))
            for name, others in arguments.ONLY_WITH.items()
        ),
    )


def as_option(name: str) -> str:
    """Return the option that a parser stores under a name, marked as code for Markdown."""
    return f"`--{name.replace('_', '-')}`"


def corpora_page() -> list[str]:
    """Return the lines of the page of corpora that ``fairseq-ext corpus`` makes, with licences."""
    from fairseq_ext.corpora import catalogue

    rows = [
        (f"`{name}`", f"{corpus.src} → {corpus.tgt}", corpus.licence)
        for name, corpus in sorted(catalogue.CORPORA.items())
    ]
    lines = [
        "# Corpora and their licences",
        "",
        "No text of a corpus is in this repository: scripts take it from its owners. Their terms",
        "hold for the text and may hold for models trained on it; the table is a summary.",
        "How each corpus is made: [corpora](../corpora.md).",
        "",
    ]
    return lines + table(("corpus", "languages", "licence"), rows)


def python_page() -> list[str]:
    """Return the lines of the page of public functions and classes, with their docstrings."""
    lines = ["# Python API", ""]
    for public in PYTHON_API:
        module, _, name = public.partition(":")
        owner = importlib.import_module(module)
        for part in name.split("."):
            owner = getattr(owner, part)
        rest = (inspect.getdoc(owner) or "").partition("\n\n")[2]
        lines += [f"## {name}", "", first_paragraph(owner), "", "```python"]
        lines += [f"from {module} import {name.partition('.')[0]}", f"{name}{signature(owner)}"]
        lines += ["```", ""]
        if rest:
            lines += ["```text", rest.strip(), "```", ""]
    return lines


def signature(owner: Any) -> str:
    """Return the parameters of a function or class, in parentheses.

    If they need 80 characters or more, each is on a line of its own.
    """
    parameters = [
        re.sub(r"<function (\w+) at \w+>", r"\1", str(parameter)).replace("'", "")
        for parameter in inspect.signature(owner).parameters.values()
    ]
    short = ", ".join(parameters)
    if len(short) < 80:
        return f"({short})"
    return "(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + ")"


# ---- all of it -----------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Map each page's file name to its text."""
    from fairseq_ext import register

    register()
    texts = {
        "commands.md": commands_page(),
        "models.md": models_page(),
        "tasks.md": tasks_page(),
        "scripts.md": scripts_page(),
        "patches.md": patches_page(),
        "corpora.md": corpora_page(),
        "python.md": python_page(),
    }
    index = ["# Reference", "", "Generated from the code by `python docs/make_reference.py`.", ""]
    index += [f"- [{lines[0].removeprefix('# ')}]({name})" for name, lines in texts.items()]
    texts = {"index.md": index, **texts}
    return {name: "\n".join([NOTE, "", *lines]).rstrip() + "\n" for name, lines in texts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; name what differs")
    args = parser.parse_args()
    os.environ["COLUMNS"] = "100"
    texts = pages()
    former = {path.name: path.read_text("utf-8") for path in REFERENCE.glob("*.md")}
    wrong = sorted(n for n in texts.keys() | former.keys() if texts.get(n) != former.get(n))
    if args.check:
        for name in wrong:
            print(f"docs/reference/{name} is out of date: run python docs/make_reference.py")
        return 1 if wrong else 0
    REFERENCE.mkdir(exist_ok=True)
    for name in former.keys() - texts.keys():
        (REFERENCE / name).unlink()
    for name, text in texts.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    print(f"{len(texts)} pages, {len(wrong)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
