"""``fairseq-ext shortlist``, and the commands that translate with what it writes."""

import json
from pathlib import Path

import pytest

from fairseq_ext.commands.shortlist import _prefix
from fairseq_ext.engine import shortlist
from fairseq_ext.model import program_file
from fairseq_ext.utils.errors import CheckpointError, DataError
from tests.support.bundles import sign_again
from tests.support.fuzz_engine import fuzz
from tests.support.harness import command, error_line, fairseq, hypotheses, refused, run

BEAM = ("--beam", 2, "--max-len-b", 12, "--cpu")
DIGITS = set("0123456789")


@pytest.fixture(scope="module")
def lists(copy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shortlist") / "lists"
    command("shortlist", copy_data, "-o", path, "--per-token", 1, "--frequent", 6)
    return path


def allowed(lists: Path, line: str) -> set[str]:
    """What a line may be translated into, from the file."""
    _, frequent, *rows = lists.read_text().splitlines()
    lists_of_words = dict(row.split("\t") for row in rows)
    return {*frequent.split(" "), *(lists_of_words[word] for word in line.split())}


def test_a_copying_corpus_lists_copies(lists: Path) -> None:
    title, frequent, *rows = lists.read_text().splitlines()
    assert title == "fairseq-ext shortlist 1\t10"
    assert len(set(frequent.split(" ")) & DIGITS) == 6
    assert set(rows) == {f"{digit}\t{digit}" for digit in DIGITS}


def test_every_command_translates_with_it_alike(copy_data, copy_model, lists, tmp_path):
    lines = ["1 2 3", "4 5", "9 9 9 9", "0 8"]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
    options = ("--shortlist", lists)
    model, outputs = tmp_path / "listed", {}
    bundle = ("bundle", copy_model, "--data", copy_data, "-o")
    command(*bundle, model, *options)
    command(*bundle, tmp_path / "plain")
    command("describe", model, "--json", tmp_path / "sizes.json")
    sizes = json.loads((tmp_path / "sizes.json").read_text())
    assert sizes["bytes"]["shortlist"] == lists.stat().st_size
    for name, words in {
        "own": ("--path", model),
        "given": ("--path", tmp_path / "plain", *options),
        "checkpoint": (copy_data, "--path", copy_model, *options),
        "all": ("--path", tmp_path / "plain"),
    }.items():
        out = tmp_path / name
        command("translate", *words, *BEAM, "--input", tmp_path / "in", "-o", out)
        outputs[name] = out.read_text().splitlines()
    done = fairseq(
        *("interactive", copy_data, "--path", copy_model, *BEAM, *options, "--source-lang", "src"),
        *("--target-lang", "tgt", "--input", tmp_path / "in"),
    )
    outputs["interactive"] = hypotheses(done.stdout)
    assert outputs["own"] == outputs["given"] == outputs["checkpoint"] == outputs["interactive"]
    for line, translation in zip(lines, outputs["own"], strict=True):
        assert set(translation.split()) <= allowed(lists, line)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine", "fairseq"), "`--shortlist` is for the engine, but `--engine` is `fairseq`"),
        (("--score-reference",), "`--shortlist` does not go with `--score-reference`"),
        (("--diversity-rate", 0.5), "`--shortlist` is for the engine alone, but the engine has no"),
        (("--beam", 3), "the shortlist has 6 frequent tokens, but this search needs 8"),
    ],
)
def test_generate_refuses_it_where_it_has_no_effect(copy_data, copy_model, lists, options, message):
    done = fairseq(
        *("generate", copy_data, "--path", copy_model, *BEAM, "--shortlist", lists, *options),
        ok=False,
    )
    refused(done, message)


@pytest.mark.parametrize("langs", [("en", "de"), ("pt-BR", "en"), ("en-GB", "en"), ("en", "en-GB")])
def test_the_pair_of_some_data_is_found(langs: tuple[str, str], tmp_path: Path) -> None:
    pair = "-".join(langs)
    for language in langs:
        (tmp_path / f"train.{pair}.{language}.idx").touch()
    assert _prefix(tmp_path, None, None) == (tmp_path / f"train.{pair}", langs)
    assert _prefix(tmp_path, *langs)[1] == langs
    with pytest.raises(DataError, match="training data of no pair"):
        _prefix(tmp_path, "fr", None)


def test_other_data_are_refused(copy_data: Path, lists: Path, tmp_path: Path) -> None:
    line = error_line("shortlist", tmp_path, "-o", tmp_path / "lists")
    assert "has training data of no pair of languages" in line
    line = error_line("shortlist", copy_data, "--frequent", 0, "-o", lists)
    assert "`--frequent` must be at least 1, but is 0 instead." in line


def test_files_with_numbers_of_other_tokens_are_refused(copy_data, copy_model, lists, tmp_path):
    """The machine checks nothing: lists in a file are proven to be in range."""
    path = tmp_path / "bundle"
    command("bundle", copy_model, "--data", copy_data, "--shortlist", lists, "-o", path)
    model, content = program_file.read(path), lists.read_text()
    for wrong in (
        content.replace("1\t1\n", "1\t11\n"),
        content.replace("1\t1\n", ""),
        content + "1\t1\n",
        content.replace(" shortlist 1", " shortlist 2"),
    ):
        (path / "shortlist.txt").write_text(wrong)
        sign_again(path)
        with pytest.raises(CheckpointError, match=r"shortlist\.txt"):
            program_file.read(path)
    shortlist.write(path / "shortlist.txt", list(model.target[4:6]), {"1": ["1"]})
    sign_again(path)
    done = run("fairseq-ext", "translate", "--path", path, stdin="1\n", ok=False)
    refused(done, "the shortlist has 2 frequent tokens, but this search needs 12")
    (path / "shortlist.txt").write_text(content)
    sign_again(path)
    outcomes = fuzz(path, 60, tmp_path)
    assert set(outcomes) <= {"refused", "run"}
    assert outcomes["run"] > 0
