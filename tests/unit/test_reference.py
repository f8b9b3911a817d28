"""docs/reference against the code: the pages are what the generator writes, and miss no option."""

from __future__ import annotations

import argparse
import re
import sys

import pytest
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from fairseq_ext.commands import all_commands
from tests.support.harness import REPO, run

REFERENCE = REPO / "docs" / "reference"
OURS = sorted(k for k, v in MODEL_REGISTRY.items() if v.__module__.startswith("fairseq_ext."))
PICTURES = ("curves", "alignment", "lengths", "gates")


def test_the_pages_are_what_the_code_says() -> None:
    run(sys.executable, "docs/make_reference.py", "--check", cwd=REPO)


def options_of(help_text: str) -> set[str]:
    """Long options that a help text defines (not those it merely mentions)."""
    options = re.findall(r"^ {2,4}(?:-\w(?: \S+)?, )?(--[a-z][a-z-]+)", help_text, re.MULTILINE)
    return set(options) - {"--help", "--version"}


@pytest.mark.parametrize(
    "words",
    [*(command.name for command in all_commands()), *(f"plot {picture}" for picture in PICTURES)],
)
def test_every_option_of_a_command_is_listed(words: str) -> None:
    options = options_of(run("fairseq-ext", *words.split(), "--help").stdout)
    assert options or words in ("corpus", "plot", "user-dir")
    page = (REFERENCE / "commands.md").read_text("utf-8")
    section = page.partition(f"# fairseq-ext {words}\n")[2].partition("\n#")[0]
    listed = set(re.findall(r"--[a-z][a-z-]+", section))
    assert section
    assert options - listed == set()


@pytest.mark.parametrize("name", OURS)
def test_every_option_of_a_model_is_listed(name: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY[name].add_args(parser)
    options = {word for action in parser._actions for word in action.option_strings}
    not_flags = {"_name", "max_source_positions", "max_target_positions", "max_positions"}
    fields = MODEL_DATACLASS_REGISTRY[name].__dataclass_fields__.keys() - not_flags
    assert {f"--{field.replace('_', '-')}" for field in fields} == options
    page = (REFERENCE / "models.md").read_text("utf-8")
    section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
    assert {option for option in options if f"| `{option}` |" not in section} == set()


def test_every_option_of_the_task_is_listed() -> None:
    from fairseq_ext.generation.translation_ext import TranslationExtConfig

    page = (REFERENCE / "tasks.md").read_text("utf-8")
    for name in ("truncate_target", "source_bos", "random_batches", "epsilon_sampling"):
        assert name in TranslationExtConfig.__dataclass_fields__
        assert f"`--{name.replace('_', '-')}`" in page


def test_every_corpus_has_its_licence() -> None:
    page = (REFERENCE / "corpora.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| \w\w → \w\w \| (.*) \|$", page, re.M)
    assert len(rows) >= 7
    assert all(len(licence) > 20 for _, licence in rows)
