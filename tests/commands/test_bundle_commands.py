"""``fairseq-ext bundle``, and commands that take its folder where they take a checkpoint."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fairseq_ext.checkpoints import bundle
from fairseq_ext.evaluation import outputs
from fairseq_ext.model import find_model, program_file
from tests.support.harness import command, error_line, fairseq, run, write_lines

pytestmark = pytest.mark.usefixtures("cache")
LINES = "1 2 3\n4 5\n9 9 9 9\n0 8\n"


@pytest.fixture(scope="module")
def archive(copy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as one file, from the bundle: the data is not needed any more."""
    path = tmp_path_factory.mktemp("archive") / "copying.zip"
    output = command("bundle", copy_bundle, "-o", path)
    assert f"{path}: gru_tiny, src to tgt, fp32, {path.stat().st_size:,} bytes" in output
    return path


def test_a_bundle_of_a_bundle_is_the_same_unless_told_otherwise(copy_data, copy_model, tmp_path):
    """Its card too, where its licence is."""
    flags = ("--numbers", "bf16", "--licence", "MIT", "--beam", 3, "--data", copy_data)
    command("bundle", copy_model, *flags, "-o", tmp_path / "one")
    for name in ("one.zip", "two"):
        command("bundle", tmp_path / "one", "-o", tmp_path / name)
    shutil.unpack_archive(tmp_path / "one.zip", tmp_path / "unpacked")
    content, *copies = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two", "unpacked/one")
    )
    assert copies == [content, content]
    assert b"license: MIT" in content["README.md"]
    command("bundle", tmp_path / "one", "--lenpen", 2, "-o", tmp_path / "changed")
    changed = bundle.read(tmp_path / "changed")
    assert (changed.numbers, changed.search) == ("bf16", {"beam": 3, "lenpen": 2})
    weights = tmp_path / "changed" / bundle.WEIGHTS
    assert weights.read_bytes() == content[bundle.WEIGHTS]


def test_what_options_do_not_change_is_kept(copy_data: Path, copy_model: Path, tmp_path: Path):
    """Licence, data and figures of the card, and the shortlist."""
    score = {"name": "BLEU", "value": 30.5, "signature": "nrefs:1|tok:13a", "detail": "30.5 |1.0|"}
    (tmp_path / "s.json").write_text(json.dumps({"scores": [score]}))
    about = "Of a test.\n\n- architecture of houses\n- and of boats"
    flags = ("--scores", tmp_path / "s.json", "--licence", "MIT", "--about", about)
    shortlist = ("--per-token", 1, "--frequent", 9)
    lists = tmp_path / "lists"
    command("shortlist", copy_data, *shortlist, "-o", lists)
    options = ("--shortlist", lists, "--data", copy_data, "--beam", 3)
    command("bundle", copy_model, *flags, *options, "-o", tmp_path / "one")
    card = (tmp_path / "one" / "README.md").read_text(encoding="utf-8")

    command("bundle", tmp_path / "one", "--numbers", "bf16", "-o", tmp_path / "b.zip")
    command("bundle", tmp_path / "b.zip", "--lenpen", 2, "-o", tmp_path / "two")
    card_text = (tmp_path / "two" / "README.md").read_text(encoding="utf-8")
    note = "Measured with the weights in fp32.\n\n"
    assert card_text.count(note) == 1
    assert card_text.replace(note, "").replace("stored in bf16", "stored in fp32") == card
    program = program_file.read(tmp_path / "two")
    assert bundle.read(tmp_path / "two").numbers == "bf16"
    assert program.search == {"beam": 3, "lenpen": 2}
    assert program.shortlist is not None
    flags = ("--licence", "CC0-1.0", "--scores", tmp_path / "s.json")
    command("bundle", tmp_path / "two", *flags, "-o", tmp_path / "three")
    card_text = (tmp_path / "three" / "README.md").read_text(encoding="utf-8")
    changed = card.replace("license: MIT", "license: CC0-1.0")
    assert card_text == changed.replace("stored in fp32", "stored in bf16")


def test_cards_that_were_edited_or_deleted(copy_bundle: Path, tmp_path: Path):
    hand = shutil.copytree(copy_bundle, tmp_path / "hand")
    (hand / "README.md").write_text("---\nlicense: MIT\n---\n\n# Mine\n\nAll of it.\n")
    command("bundle", hand, "--beam", 3, "-o", tmp_path / "one")
    card = (tmp_path / "one" / "README.md").read_text(encoding="utf-8")
    assert "license: MIT\n" in card
    assert "# Mine\n\nAll of it.\n\n- architecture: `gru_tiny`" in card
    (hand / "README.md").unlink()
    command("bundle", hand, "--beam", 3, "-o", tmp_path / "two")
    assert "license: unknown" in (tmp_path / "two" / "README.md").read_text(encoding="utf-8")


def test_fairseqs_commands_take_it(copy_data, copy_model, copy_bundle, archive, tmp_path):
    """As DATA too, since the dictionaries are in it."""
    generated = []
    for number, path in enumerate((copy_model, copy_bundle, archive)):
        output = fairseq("generate", copy_data, "--path", path, "--beam", "2").stdout
        (tmp_path / str(number)).write_text(output, encoding="utf-8")
        generated.append(outputs.read_generated(tmp_path / str(number)))
    assert generated[0] == generated[1] == generated[2]
    words = ("--source-lang", "src", "--target-lang", "tgt", "--path", copy_bundle)
    output = fairseq("interactive", copy_bundle, *words, stdin=LINES).stdout
    theirs = [line.split("\t")[2] for line in output.splitlines() if line.startswith("H-")]
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
    assert len(losses) == 2
    assert losses[0] == losses[1]


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
    lines = ["a house", "a tree by the river"]
    text = write_lines(tmp_path / "text", lines)
    paths = {"checkpoint": copy_model, "folder": copy_bundle, "file": archive}
    systems = [
        word
        for name, path in paths.items()
        for word in ("--system", f"{name}=text:{text},checkpoint={path}")
    ]
    flags = ("--ref", text, "--samples", "100", "--json", tmp_path / "c.json")
    command("compare", *systems, *flags)
    rows = json.loads((tmp_path / "c.json").read_text())["systems"]
    assert {row["parameters"] for row in rows} == {rows[0]["parameters"]}
    assert {row["updates"] for row in rows} == {4}
    scores = ("--scores", tmp_path / "c.json", "--system", "folder")
    command("bundle", copy_bundle, *scores, "-o", tmp_path / "scored")
    card = (tmp_path / "scored" / "README.md").read_text(encoding="utf-8")
    assert "| chrF | 100.00 | 100.00 to 100.00 (95%) | `nrefs:1\\|bs:100\\|" in card
    assert "4 updates" in card
    line = error_line("bundle", copy_bundle, *scores[:2], "-o", tmp_path / "x")
    assert "`--system` must be one of checkpoint, folder, file" in line


def test_one_line_where_it_cannot_be(copy_model: Path, copy_bundle: Path, tmp_path: Path):
    done = run("fairseq-ext", "bundle", copy_model, "-o", copy_bundle, ok=False)
    assert "is there already; choose another name for the bundle" in done.stderr
    assert done.stderr.count("\n") == 1
    for name in ("a.tar.gz", "a.TGZ", "a.7z", "a.rar"):
        line = error_line("bundle", copy_model, "-o", tmp_path / name)
        assert f"{tmp_path / name}`: an archive's name must end in .zip or .tar.zst." in line
    line = error_line("bundle", copy_model, "--lenpen", "nan", "-o", tmp_path / "a")
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
        (
            ("1", "2", "--model", copy_model),
            "DATA must be one folder. Text can be an argument where the model is a bundle",
        ),
        (
            ("--path", copy_bundle, "1 2"),
            "`--path` takes all arguments after it as models, but 1 2 is not a file or folder.",
        ),
        (("--path", copy_bundle, "1 " * 2000), "`--path` takes all"),  # longer than a name may be
        (
            ("1", "--model", copy_bundle, *text_file),
            "`--input` does not go with text as an argument",
        ),
        (
            (copy_data, "--model", copy_bundle),
            "`DATA` has no effect on bundles, which have dictionaries; leave it out.",
        ),
    ):
        assert message in error_line("translate", *words)


def test_a_name_is_that_of_a_model_that_comes_along(copy_bundle: Path, tmp_path: Path, monkeypatch):
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "copying").symlink_to(copy_bundle)
    (tmp_path / "shipped" / "README.md").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(find_model, "SHIPPED", tmp_path / "shipped")
    assert find_model.shipped() == ["copying"]
    assert find_model.resolved(Path("copying")) == find_model.SHIPPED / "copying"
    for other in ("README.md", "copied", "x/copying.pt"):
        assert find_model.resolved(Path(other)) == Path(other)
    (tmp_path / "copying").touch()
    assert find_model.resolved(Path("copying")) == Path("copying")
