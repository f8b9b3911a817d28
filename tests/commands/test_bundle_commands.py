"""``fairseq-ext bundle``, and commands that take its folder where they take a checkpoint."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fairseq_ext.checkpoints import bundle
from fairseq_ext.model import program_file
from tests.support.harness import command, contents, error_line, fairseq, hypotheses, write_lines

pytestmark = pytest.mark.usefixtures("cache")
LINES = "1 2 3\n4 5\n9 9 9 9\n0 8\n"


@pytest.fixture(scope="module")
def archive(copy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as one file, from the bundle: the data is not needed any more."""
    path = tmp_path_factory.mktemp("archive") / "copying.zip"
    output = command("bundle", copy_bundle, "-o", path)
    assert f"{path}: gru_tiny, src to tgt, fp32, {path.stat().st_size:,} bytes" in output
    return path


@pytest.fixture(scope="module")
def described(copy_data: Path, copy_model: Path, tmp_path_factory) -> Path:
    """A bundle with all that a bundle may have; the file of its scores is beside it."""
    folder = tmp_path_factory.mktemp("described")
    score = {"name": "BLEU", "value": 30.5, "signature": "nrefs:1|tok:13a", "detail": "30.5 |1.0|"}
    (folder / "scores.json").write_text(json.dumps({"scores": [score]}))
    lists = ("--per-token", 1, "--frequent", 9)
    command("shortlist", copy_data, *lists, "-o", folder / "lists")
    about = "Of a test.\n\n- architecture of houses\n- and of boats"
    flags = ("--scores", folder / "scores.json", "--licence", "MIT", "--about", about)
    options = ("--shortlist", folder / "lists", "--data", copy_data, "--beam", 3)
    command("bundle", copy_model, *flags, *options, "-o", folder / "one")
    return folder / "one"


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def test_a_bundle_of_a_bundle_is_the_same_unless_told_otherwise(described: Path, tmp_path: Path):
    for name in ("one.zip", "two"):
        command("bundle", described, "-o", tmp_path / name)
    shutil.unpack_archive(tmp_path / "one.zip", tmp_path)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(described)


def test_what_options_do_not_change_is_kept(described: Path, tmp_path: Path):
    """The shortlist, and the card; but scores are only of the weights that they were made with."""
    card = card_of(described)
    assert "license: MIT\n" in card
    assert "metrics:\n- bleu\n---" in card
    assert "| BLEU | 30.50 | 30.5 \\|1.0\\| | `nrefs:1\\|tok:13a` |" in card
    command("bundle", described, "--numbers", "bf16", "-o", tmp_path / "b.zip")
    command("bundle", tmp_path / "b.zip", "--lenpen", 2, "-o", tmp_path / "two")
    assert "BLEU" not in card_of(tmp_path / "two")
    shutil.unpack_archive(tmp_path / "b.zip", tmp_path)
    weights = [(tmp_path / name / bundle.WEIGHTS).read_bytes() for name in ("b", "two")]
    assert weights[0] == weights[1]
    program = program_file.read(tmp_path / "two")
    assert bundle.read(tmp_path / "two").numbers == "bf16"
    assert program.search == {"beam": 3, "lenpen": 2}
    assert program.shortlist is not None
    flags = ("--licence", "CC0-1.0", "--scores", described.with_name("scores.json"))
    command("bundle", tmp_path / "two", *flags, "-o", tmp_path / "three")
    changed = card.replace("license: MIT", "license: CC0-1.0")
    assert card_of(tmp_path / "three") == changed.replace("stored in fp32", "stored in bf16")
    command("bundle", tmp_path / "three", "--beam", 2, "-o", tmp_path / "four")
    assert card_of(tmp_path / "four") == card_of(tmp_path / "three")


def test_cards_that_were_edited_or_deleted(copy_bundle: Path, tmp_path: Path):
    hand = shutil.copytree(copy_bundle, tmp_path / "hand")
    (hand / "README.md").write_text("---\nlicense: MIT\n---\n\n# Mine\n\nAll of it.\n")
    command("bundle", hand, "--beam", 3, "-o", tmp_path / "one")
    card = card_of(tmp_path / "one")
    assert "license: MIT\n" in card
    assert "# Mine\n\nAll of it.\n\n- architecture: `gru_tiny`" in card
    (hand / "README.md").unlink()
    command("bundle", hand, "--beam", 3, "-o", tmp_path / "two")
    assert "license: unknown" in card_of(tmp_path / "two")


def test_fairseqs_commands_take_it(copy_data, copy_model, copy_bundle, archive):
    """As DATA too, since the dictionaries are in it."""
    runs = (
        fairseq("generate", copy_data, "--path", path, "--beam", "2").stdout
        for path in (copy_model, copy_bundle, archive)
    )
    expected, *others = (re.findall(r"^[STHDP]-\d.*", text, re.MULTILINE) for text in runs)
    assert len(expected) == 5 * 50
    assert others == [expected] * 2
    words = ("--source-lang", "src", "--target-lang", "tgt", "--path", copy_bundle)
    theirs = hypotheses(fairseq("interactive", copy_bundle, *words, stdin=LINES).stdout)
    for path in (copy_bundle, archive):
        ours = command("translate", "--path", path, stdin=LINES.encode())
        assert ours.splitlines() == theirs


def test_fairseq_validates_it_without_label_smoothing(copy_data, copy_model, copy_bundle):
    """It does not know its training, nor what was minimized there."""
    losses = []
    for path in (copy_model, copy_bundle):
        words = ("--path", path, "--task", "translation", "--max-tokens", 4000)
        done = fairseq("validate", copy_data, *words)
        losses += re.findall(r"loss ([0-9.]+ \| ppl [0-9.]+) ", done.stdout + done.stderr)
    assert losses == [losses[0]] * 2


def test_a_training_starts_from_it(
    copy_data: Path, copy_bundle: Path, archive: Path, tmp_path: Path
):
    flags = ("--arch", "gru_tiny", "--optimizer", "adam", "--max-tokens", "600")
    options = ("--max-update", "1", "--disable-validation", "--save-dir", tmp_path / "run")
    start = ("--finetune-from-model", copy_bundle)
    taught = ("--criterion", "distillation", "--teacher", archive)
    done = fairseq("train", copy_data, *flags, *options, *start, *taught)
    assert "loading pretrained model from" in done.stdout + done.stderr
    assert (tmp_path / "run" / "checkpoint_last.pt").is_file()


def test_a_comparison_takes_it(copy_model: Path, copy_bundle: Path, archive: Path, tmp_path: Path):
    text = write_lines(tmp_path / "text", ["a house", "a tree by the river"])
    words = ["--ref", text, "--samples", "100", "--json", tmp_path / "c.json"]
    for name, path in {"checkpoint": copy_model, "folder": copy_bundle, "file": archive}.items():
        words += ["--system", f"{name}=text:{text},checkpoint={path}"]
    command("compare", *words)
    rows = json.loads((tmp_path / "c.json").read_text())["systems"]
    assert {row["parameters"] for row in rows} == {rows[0]["parameters"]}
    assert {row["updates"] for row in rows} == {4}
    scores = ("--scores", tmp_path / "c.json", "--system", "folder")
    command("bundle", copy_bundle, *scores, "-o", tmp_path / "scored")
    card = card_of(tmp_path / "scored")
    assert "| chrF | 100.00 | 100.00 to 100.00 (95%) | `nrefs:1\\|bs:100\\|" in card
    assert "4 updates" in card
    line = error_line("bundle", copy_bundle, *scores[:2], "-o", tmp_path / "x")
    assert "`--system` must be one of checkpoint, folder, file" in line


def test_one_line_where_it_cannot_be(copy_model: Path, copy_bundle: Path, tmp_path: Path):
    bundling = ("bundle", copy_model, "-o")
    line = error_line(*bundling, copy_bundle)
    assert line.endswith("is there already; choose another name.")
    other = write_lines(tmp_path / "other.pt", ["not to be lost"])
    assert line.replace(str(copy_bundle), str(other)) == error_line(
        "export", copy_bundle, "-o", other
    )
    for name in ("a.tar.gz", "a.TGZ", "a.7z", "a.rar"):
        message = f"{tmp_path / name}`: an archive's name must end in .zip or .tar.zst."
        assert message in error_line(*bundling, tmp_path / name)
    line = error_line(*bundling, tmp_path / "a", "--lenpen", "nan")
    assert "`--lenpen` must be at most 100, but is nan instead." in line
    line = error_line("translate", "--path", tmp_path, stdin=LINES.encode())
    assert "is a folder without a model" in line


def test_text_is_an_argument_where_the_model_has_its_dictionaries(
    copy_data: Path, copy_model: Path, copy_bundle: Path, archive: Path, tmp_path: Path
):
    lines = LINES.encode()
    expected = command("translate", "--path", copy_bundle, stdin=lines)
    assert expected.count("\n") == 4
    for path in (copy_bundle, archive):
        assert command("translate", "--model", path, *LINES.splitlines()) == expected
    assert command("translate", LINES.removesuffix("\n"), "--model", copy_bundle) == expected
    assert command("translate", copy_data, "--model", copy_model, stdin=lines) == expected
    assert command("translate", "--path", copy_bundle, stdin=f"\ufeff{LINES}".encode()) == expected

    text_file = ("--input", write_lines(tmp_path / "text", ["1"]))
    for words, message in (
        (("1 2", "--model", copy_model), "1 2"),
        (("1", "2", "--model", copy_model), "Text can be an argument where the model is a bundle"),
        (("--path", copy_bundle, "1 2"), "after it as models, but 1 2 is not a file or folder."),
        (("--path", copy_bundle, "1 " * 2000), "`--path` takes all"),  # longer than a name may be
        (("1", "--model", copy_bundle, *text_file), "`--input` does not go with text as an arg"),
        ((copy_data, "--model", copy_bundle), "has no effect on bundles, which have dictionaries"),
    ):
        assert message in error_line("translate", *words)
