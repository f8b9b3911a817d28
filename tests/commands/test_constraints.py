"""Lexical constraints in fairseq-interactive and in ``translate``, both on the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_ext.model import write
from tests.commands.test_engine_models import without_torch
from tests.support.bundles import saved
from tests.support.harness import command, error_line, fairseq, hypotheses

LINES = ["w1 w2 w3\tw9\tw4 w5", "w7", "", "w3 w3 w2 w8\tw11"]
HOW = ("--beam", 4, "--max-len-b", 12, "--cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("constraints") / "run", "transformer")


@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_translations_have_the_constraints(
    folder: Path, order: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """As fairseq-interactive translates, also from a bundle without torch."""
    text = "\n".join(LINES) + "\n"
    flags = ("--constraints", order, *HOW)
    path = ("--path", folder / "checkpoint_best.pt")
    filled = "".join(f"{line}\n" for line in LINES if line)
    languages = ("--source-lang", "de", "--target-lang", "en", "--buffer-size", 9)
    done = fairseq(
        *("interactive", folder, *path, *flags, *languages, "--engine", "fairseq"), stdin=filled
    )
    expected = hypotheses(done.stdout)
    (tmp_path / "in").write_text(text)
    command("translate", folder, *path, *flags, "--input", tmp_path / "in", "-o", tmp_path / "out")
    assert "instead of the engine" not in caplog.text
    write.write(folder / "checkpoint_best.pt", folder, tmp_path / "bundle")
    bundled = without_torch("translate", "--path", tmp_path / "bundle", *flags, stdin=text)
    for written in ((tmp_path / "out").read_text(), bundled):
        translations = written.splitlines()
        assert [line for line in translations if line] == expected
        assert translations[2] == ""
    for line, translation in zip(LINES, translations, strict=True):
        for constraint in line.split("\t")[1:]:
            assert f" {constraint} " in f" {translation} "
    first = f" {translations[0]} "
    if order == "ordered":
        assert first.index(" w9 ") < first.index(" w4 w5 ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sampling",), "`--constraints` does not go with `--sampling`"),
        (("--keep", "x"), "`--keep` does not go with `--constraints`; give one of them."),
        ((), "constraint `unknown` has tokens that the model does not write."),
    ],
)
def test_what_is_refused(folder: Path, options: tuple, message: str, tmp_path: Path):
    (tmp_path / "in").write_text("w1\tunknown\n")
    words = ("translate", "--path", folder, "--input", tmp_path / "in", "--cpu")
    assert message in error_line(*words, "--constraints", "ordered", *options)
