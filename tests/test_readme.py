"""The README against the code: every option listed, every message and every link there."""

from __future__ import annotations

import argparse
import re
import sys

import pytest
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from harness import REPO, run

README = (REPO / "README.md").read_text(encoding="utf-8")


def options_of(help_text: str) -> set[str]:
    """Long options that a help text defines (not those it merely mentions)."""
    found = re.findall(r"^ {2,4}(?:-\w(?: \S+)?, )?(--[a-z][a-z-]+)", help_text, re.MULTILINE)
    return set(found) - {"--help", "--version"}


COMMANDS = [
    *(
        ["fairseq-ext", *words.split(), "--help"]
        for words in (
            *("doctor", "average", "hypotheses", "score", "fuse", "compare", "translate"),
            *("mbr", "scaling-fit", "demo", "subwords"),
        )
    ),
    *(
        ["fairseq-ext", "plot", picture, "--help"]
        for picture in ("curves", "alignment", "lengths", "gates")
    ),
    *(["bash", f"recipes/{name}.sh", "--help"] for name in ("quickstart", "compare")),
    ["bash", "recipes/gru/europarl_es_en.sh", "--help"],
    ["bash", "recipes/linformer/wmt14_en_de.sh", "--help"],
    ["bash", "recipes/linformer/classify.sh", "--help"],
    ["bash", "recipes/muse/iwslt14_de_en.sh", "--help"],
    ["bash", "recipes/bmt/table1.sh", "--help"],
    *(
        [sys.executable, f"preprocess/{name}.py", "--help"]
        for name in ("locale_corpus", "split_pairs", "wmt14_csv", "corpus")
    ),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:-1])[-40:])
def test_every_option_of_a_command_is_in_the_readme(command: list[str]) -> None:
    options = options_of(run(*command, cwd=REPO).stdout)
    assert options
    assert {option for option in options if f"`{option}" not in README} == set()


@pytest.mark.parametrize("name", ["gru_attention", "linformer", "linformer_encoder", "muse", "bmt"])
def test_every_option_of_a_model_is_in_the_readme(name: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY[name].add_args(parser)
    options = {word for action in parser._actions for word in action.option_strings}
    not_flags = {"_name", "max_source_positions", "max_target_positions", "max_positions"}
    fields = MODEL_DATACLASS_REGISTRY[name].__dataclass_fields__.keys() - not_flags
    assert {f"--{field.replace('_', '-')}" for field in fields} == options
    assert {option for option in options if f"`{option}`" not in README} == set()


@pytest.mark.parametrize(
    "name", ["truncate_target", "source_bos", "random_batches", "epsilon_sampling"]
)
def test_every_option_of_the_task_is_in_the_readme(name: str) -> None:
    from fairseq_ext.decoding.translation_ext import TranslationExtConfig

    assert name in TranslationExtConfig.__dataclass_fields__
    assert f"`--{name.replace('_', '-')}`" in README


def test_messages_of_ours_in_the_troubleshooting_table_exist() -> None:
    code = "".join(path.read_text("utf-8") for path in sorted((REPO / "fairseq_ext").rglob("*.py")))
    for message in (
        "both provide the package `fairseq`",
        "is already taken by",
        "carriage return inside the line",
        "not UTF-8, byte",
        "lines but",
        "is truncated or damaged",
        "the checksum of its part",
        "is not plain data and could run code",
    ):
        assert message in README, message
        assert message in code, message


def test_links_lead_somewhere() -> None:
    for page in [REPO / "README.md", *(REPO / "docs").rglob("*.md"), *REPO.glob("*/README.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page}: {target}"
