"""Bundles with a program in every command: no torch, no data folder, no options."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from fairseq_ext.checkpoints import storage
from fairseq_ext.decoding.loading import data_of
from fairseq_ext.model import write
from fairseq_ext.text.pipeline import Pipeline
from tests.support.bundles import saved
from tests.support.harness import command, error_line, fairseq, hypotheses, run

LINES = "1 2 3\n\n4 5\n9 9 9 9\n0 8\n"
WATCHED = """
import sys
from fairseq_ext import cli
try:
    cli.main()
finally:
    print([name for name in ("torch", "fairseq") if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def packed(copy_data: Path, copy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copying model as a bundle, with a ``text.json`` that was beside it."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "codes").write_text("#version: 0.2\n1 2</w>\n")
    text = Pipeline("src", "tgt", lowercase=True, subwords="subword-nmt", files=(folder / "codes",))
    text.save(folder)
    checkpoint = folder / "checkpoint.pt"
    checkpoint.write_bytes(copy_model.read_bytes())
    command("bundle", checkpoint, "--data", copy_data, "-o", folder / "bundle")
    (folder / "codes").unlink()
    (folder / "text.json").unlink()
    return folder / "bundle"


def without_torch(*words: object, stdin: str = LINES) -> str:
    """What the command prints, in a process that must import neither torch nor fairseq."""
    done = run(sys.executable, "-c", WATCHED, *words, stdin=stdin, OMP_NUM_THREADS="2")
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--beam", 4, "--nbest", 3, "--max-len-b", 12),
        ("--lenpen", 0.3, "--max-len-a", 1.5, "--max-len-b", 2, "--max-tokens", 12),
        ("--gnmt-lenpen", 0.6, "--max-len-b", 6, "--buffer-size", 1),
    ],
)
def test_it_translates_as_its_checkpoint(copy_data, copy_model, packed, tmp_path, options):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    text = without_torch("translate", "--path", packed, *options, "--json", ours)
    done = run(
        *("fairseq-ext", "translate", copy_data, "--path", copy_model, "--engine", "native"),
        *(*options, "--json", theirs),
        stdin=LINES,
    )
    assert text == done.stdout
    assert ours.read_text() == theirs.read_text()


def test_text_is_its_own_unless_told_otherwise(packed: Path, tmp_path: Path):
    details = tmp_path / "details"
    without_torch("translate", "--path", packed, "--json", details, stdin="13 3\n")
    (details_line,) = details.read_text().splitlines()
    without_torch("translate", "--path", packed, "--json", details, "--remove-bpe", stdin="13 3\n")
    (other,) = details.read_text().splitlines()
    assert details_line != other  # as pieces 1@@ and 3, and as one unknown word


def test_defaults_of_the_search(copy_data: Path, copy_model: Path, tmp_path: Path):
    path, details = tmp_path / "bundle", tmp_path / "details"
    options = ("--numbers", "int8", "--max-len-b", 3, "--beam", 2)
    command("bundle", copy_model, "--data", copy_data, *options, "-o", path)
    command("describe", path, "--json", details)
    assert json.loads(details.read_text())["search"] == {"beam": 2, "max_len_b": 3}
    by_itself = without_torch("translate", "--path", path)
    assert by_itself == without_torch("translate", "--path", path, *options[2:])
    assert by_itself != without_torch("translate", "--path", path, "--max-len-b", 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--src", "tgt", "--tgt", "src"), "`--src` and `--tgt` must be src and tgt"),
        (("--beam", 9), "`--beam` is 9, but must be at most 7"),
        (("--mbr", 2, "--beam", 2), "`--beam` does not go with `--mbr`"),
    ],
)
def test_options_that_do_not_go_with_it(packed: Path, options: tuple, message: str):
    assert message in error_line("translate", "--model", packed, "1", *options)


def test_it_votes_with_a_checkpoint(copy_data: Path, copy_model: Path, packed: Path):
    """In fairseq then: both are the same model."""
    ensemble = run("fairseq-ext", "translate", copy_data, "--path", packed, copy_model, stdin=LINES)
    alone = run("fairseq-ext", "translate", copy_data, "--path", packed, stdin=LINES)
    assert ensemble.stdout == alone.stdout


def test_a_checkpoint_finds_the_data_of_its_training(copy_data, copy_model, tmp_path):
    with_data, without_data = (
        run("fairseq-ext", "translate", *data, "--path", copy_model, stdin=LINES).stdout
        for data in ((copy_data,), ())
    )
    assert with_data == without_data != ""
    checkpoint = storage.load(copy_model)
    checkpoint["cfg"]["task"]["data"] = str(tmp_path / "gone")
    storage.save(checkpoint, tmp_path / "model.pt")
    message = "DATA must be the folder of fairseq-preprocess, but is missing"
    assert message in error_line("translate", "--path", tmp_path / "model.pt")


def test_a_run_of_a_recipe_finds_its_data_from_anywhere(
    copy_data: Path, copy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was trained on ``bin``, in the folder two above the checkpoint's."""
    folder = tmp_path / "run" / "models" / "copying"
    folder.mkdir(parents=True)
    shutil.copytree(copy_data, tmp_path / "run" / "bin")
    checkpoint = storage.load(copy_model)
    checkpoint["cfg"]["task"]["data"] = "bin"
    storage.save(checkpoint, folder / "checkpoint_best.pt")
    monkeypatch.chdir(tmp_path)
    assert data_of(Path("run/models/copying/checkpoint_best.pt")) == tmp_path / "run" / "bin"
    monkeypatch.chdir(folder.parents[1])
    assert data_of(Path("models/copying/checkpoint_best.pt")) == tmp_path / "run" / "bin"


CONSTRAINED = ["w1 w2 w3\tw9\tw4 w5", "w7", "", "w3 w3 w2 w8\tw11"]
HOW = ("--beam", 4, "--max-len-b", 12, "--cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("constraints") / "run", "transformer")


@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_translations_have_the_constraints(folder, order, tmp_path, caplog):
    """As fairseq-interactive translates, also from a bundle without torch."""
    text = "\n".join(CONSTRAINED) + "\n"
    flags = ("--constraints", order, *HOW)
    path = ("--path", folder / "checkpoint_best.pt")
    filled = "".join(f"{line}\n" for line in CONSTRAINED if line)
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
    for line, translation in zip(CONSTRAINED, translations, strict=True):
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
