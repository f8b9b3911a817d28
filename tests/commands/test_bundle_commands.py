"""``fairseq-ext bundle``, and commands that take its folder where they take a checkpoint."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fairseq_ext.checkpoints import bundle
from fairseq_ext.evaluation import outputs
from fairseq_ext.model import find_model, program_file
from tests.support.harness import fairseq, refused, run, write_lines

LINES = "1 2 3\n4 5\n9 9 9 9\n0 8\n"


@pytest.fixture(scope="module")
def bundled(copy_data: Path, copy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundled") / "copying"
    done = run("fairseq-ext", "bundle", copy_model, "--data", copy_data, "-o", folder)
    assert f"{folder}: gru_tiny, src to tgt, fp32" in done.stdout
    return folder


@pytest.fixture(scope="module")
def archive(bundled: Path) -> Path:
    """The same as one file, from the bundle: the data is not needed any more."""
    path = bundled.with_name("copying.zip")
    done = run("fairseq-ext", "bundle", bundled, "-o", path)
    assert f"{path}: gru_tiny, src to tgt, fp32, {path.stat().st_size:,} bytes" in done.stdout
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_bundle_of_a_bundle_is_the_same_unless_told_otherwise(copy_data, copy_model, tmp_path):
    """Its card too, where its licence is."""
    flags = ("--numbers", "bf16", "--licence", "MIT", "--beam", 3, "--data", copy_data)
    run("fairseq-ext", "bundle", copy_model, *flags, "-o", tmp_path / "one")
    for name in ("one.zip", "two"):
        run("fairseq-ext", "bundle", tmp_path / "one", "-o", tmp_path / name)
    shutil.unpack_archive(tmp_path / "one.zip", tmp_path / "unpacked")
    content, *copies = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two", "unpacked/one")
    )
    assert copies == [content, content]
    assert b"license: MIT" in content["README.md"]
    run("fairseq-ext", "bundle", tmp_path / "one", "--lenpen", 2, "-o", tmp_path / "changed")
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
    run("fairseq-ext", "shortlist", copy_data, *shortlist, "-o", lists)
    options = ("--shortlist", lists, "--data", copy_data, "--beam", 3)
    run("fairseq-ext", "bundle", copy_model, *flags, *options, "-o", tmp_path / "one")
    card = (tmp_path / "one" / "README.md").read_text(encoding="utf-8")

    run("fairseq-ext", "bundle", tmp_path / "one", "--numbers", "bf16", "-o", tmp_path / "b.zip")
    run("fairseq-ext", "bundle", tmp_path / "b.zip", "--lenpen", 2, "-o", tmp_path / "two")
    card_text = (tmp_path / "two" / "README.md").read_text(encoding="utf-8")
    note = "Measured with the weights in fp32.\n\n"
    assert card_text.count(note) == 1
    assert card_text.replace(note, "").replace("stored in bf16", "stored in fp32") == card
    program = program_file.read(tmp_path / "two")
    assert (program.numbers, program.search) == ("bf16", {"beam": 3, "lenpen": 2})
    assert program.shortlist is not None
    flags = ("--licence", "CC0-1.0", "--scores", tmp_path / "s.json")
    run("fairseq-ext", "bundle", tmp_path / "two", *flags, "-o", tmp_path / "three")
    card_text = (tmp_path / "three" / "README.md").read_text(encoding="utf-8")
    changed = card.replace("license: MIT", "license: CC0-1.0")
    assert card_text == changed.replace("stored in fp32", "stored in bf16")


def test_cards_that_were_edited_or_deleted(bundled: Path, tmp_path: Path):
    hand = shutil.copytree(bundled, tmp_path / "hand")
    (hand / "README.md").write_text("---\nlicense: MIT\n---\n\n# Mine\n\nAll of it.\n")
    run("fairseq-ext", "bundle", hand, "--beam", 3, "-o", tmp_path / "one")
    card = (tmp_path / "one" / "README.md").read_text(encoding="utf-8")
    assert "license: MIT\n" in card
    assert "# Mine\n\nAll of it.\n\n- architecture: `gru_tiny`" in card
    (hand / "README.md").unlink()
    run("fairseq-ext", "bundle", hand, "--beam", 3, "-o", tmp_path / "two")
    assert "license: unknown" in (tmp_path / "two" / "README.md").read_text(encoding="utf-8")


@pytest.mark.system
def test_fairseqs_commands_take_it(copy_data, copy_model, bundled, archive, tmp_path):
    """As DATA too, since the dictionaries are in it."""
    generated = []
    for number, path in enumerate((copy_model, bundled, archive)):
        output = fairseq("generate", copy_data, "--path", path, "--beam", "2").stdout
        (tmp_path / str(number)).write_text(output, encoding="utf-8")
        generated.append(outputs.read_generated(tmp_path / str(number)))
    assert generated[0] == generated[1] == generated[2]
    words = ("--source-lang", "src", "--target-lang", "tgt", "--path", bundled)
    output = fairseq("interactive", bundled, *words, stdin=LINES).stdout
    theirs = [line.split("\t")[2] for line in output.splitlines() if line.startswith("H-")]
    for path in (bundled, archive):
        ours = run("fairseq-ext", "translate", "--path", path, stdin=LINES).stdout
        assert ours.splitlines() == theirs


@pytest.mark.system
def test_fairseq_validates_it_without_label_smoothing(copy_data, copy_model, bundled):
    """It does not know its training, nor what was minimized there."""
    losses = []
    for path in (copy_model, bundled):
        words = ("--path", path, "--task", "translation", "--max-tokens", 4000)
        done = fairseq("validate", copy_data, *words)
        losses += re.findall(r"loss ([0-9.]+ \| ppl [0-9.]+) ", done.stdout + done.stderr)
    assert len(losses) == 2
    assert losses[0] == losses[1]


@pytest.mark.system
def test_a_training_starts_from_it(copy_data: Path, bundled: Path, archive: Path, tmp_path: Path):
    flags = ("--arch", "gru_tiny", "--optimizer", "adam", "--max-tokens", "600")
    options = ("--max-update", "1", "--disable-validation", "--save-dir", tmp_path / "run")
    start = ("--finetune-from-model", bundled)
    taught = ("--criterion", "distillation", "--teacher", archive)
    done = fairseq("train", copy_data, *flags, *options, *start, *taught)
    assert "loading pretrained model from" in done.stdout + done.stderr
    assert (tmp_path / "run" / "checkpoint_last.pt").is_file()


def test_a_comparison_takes_it(copy_model: Path, bundled: Path, archive: Path, tmp_path: Path):
    lines = ["a house", "a tree by the river"]
    text = write_lines(tmp_path / "text", lines)
    paths = {"checkpoint": copy_model, "folder": bundled, "file": archive}
    systems = [
        word
        for name, path in paths.items()
        for word in ("--system", f"{name}=text:{text},checkpoint={path}")
    ]
    flags = ("--ref", text, "--samples", "100", "--json", tmp_path / "c.json")
    run("fairseq-ext", "compare", *systems, *flags)
    rows = json.loads((tmp_path / "c.json").read_text())["systems"]
    assert {row["parameters"] for row in rows} == {rows[0]["parameters"]}
    assert {row["updates"] for row in rows} == {4}
    scores = ("--scores", tmp_path / "c.json", "--system", "folder")
    run("fairseq-ext", "bundle", bundled, *scores, "-o", tmp_path / "scored")
    card = (tmp_path / "scored" / "README.md").read_text(encoding="utf-8")
    assert "| chrF | 100.00 | 100.00 to 100.00 (95%) | `nrefs:1\\|bs:100\\|" in card
    assert "4 updates" in card
    done = run("fairseq-ext", "bundle", bundled, *scores[:2], "-o", tmp_path / "x", ok=False)
    assert "`--system` must be one of checkpoint, folder, file" in done.stderr


def test_one_line_where_it_cannot_be(copy_model: Path, bundled: Path, tmp_path: Path):
    done = run("fairseq-ext", "bundle", copy_model, "-o", bundled, ok=False)
    assert "is there already; choose another name for the bundle" in done.stderr
    assert done.stderr.count("\n") == 1
    for name in ("a.tar.gz", "a.TGZ", "a.7z", "a.rar"):
        done = run("fairseq-ext", "bundle", copy_model, "-o", tmp_path / name, ok=False)
        refused(done, f"{tmp_path / name}`: an archive's name must end in .zip or .tar.zst.")
    command = ("fairseq-ext", "bundle", copy_model, "--lenpen", "nan", "-o", tmp_path / "a")
    done = run(*command, ok=False)
    refused(done, "`--lenpen` must be at most 100, but is nan instead.")
    done = run("fairseq-ext", "translate", "--path", tmp_path, ok=False, stdin=LINES)
    assert "is a folder without a model" in done.stderr


@pytest.mark.system
def test_text_is_an_argument_where_the_model_has_its_dictionaries(
    copy_data: Path, copy_model: Path, bundled: Path, archive: Path, tmp_path: Path
):
    translate = ("fairseq-ext", "translate")
    expected = run(*translate, "--path", bundled, stdin=LINES).stdout
    assert expected.count("\n") == 4
    for path in (bundled, archive):
        assert run(*translate, "--model", path, *LINES.splitlines()).stdout == expected
    assert run(*translate, LINES.removesuffix("\n"), "--model", bundled).stdout == expected
    assert run(*translate, copy_data, "--model", copy_model, stdin=LINES).stdout == expected

    refused(run(*translate, "1 2", "--model", copy_model, ok=False, stdin=""), "1 2")
    message = "DATA must be one folder. Text can be an argument where the model is a bundle"
    refused(run(*translate, "1", "2", "--model", copy_model, ok=False, stdin=""), message)
    message = "`--path` takes all arguments after it as models, but 1 2 is not a file or folder."
    refused(run(*translate, "--path", bundled, "1 2", ok=False, stdin=""), message)
    long = "1 " * 2000  # longer than a name may be
    refused(run(*translate, "--path", bundled, long, ok=False, stdin=""), "`--path` takes all")
    assert run(*translate, "--path", bundled, stdin=f"\ufeff{LINES}").stdout == expected
    text_file = ("--input", write_lines(tmp_path / "text", ["1"]))
    message = "`--input` does not go with text as an argument"
    refused(run(*translate, "1", "--model", bundled, *text_file, ok=False), message)


def test_a_name_is_that_of_a_model_that_comes_along(bundled: Path, tmp_path: Path, monkeypatch):
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "copying").symlink_to(bundled)
    (tmp_path / "shipped" / "README.md").touch()
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shipped"
    assert find_model.shipped(folder) == ["copying"]
    assert find_model.resolved(Path("copying"), folder) == folder / "copying"
    for other in ("README.md", "copied", "x/copying.pt"):
        assert find_model.resolved(Path(other), folder) == Path(other)
    (tmp_path / "copying").touch()
    assert find_model.resolved(Path("copying"), folder) == Path("copying")
