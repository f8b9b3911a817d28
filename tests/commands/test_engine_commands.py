"""The engine in commands: checkpoints, bundles without torch, and shortlists."""

import json
import math
import shutil
import sys
from pathlib import Path

import pytest

from fairseq_ext.decoding.loading import data_of
from fairseq_ext.evaluation import outputs
from fairseq_ext.model import program_file, write
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import CheckpointError
from tests.support.bundles import saved, sign_again
from tests.support.fuzz_engine import fuzz
from tests.support.harness import command, error_line, fairseq, hypotheses, refused, run
from tests.support.trainings import with_data

HOW = ("--beam", 4, "--nbest", 3, "--max-len-b", 15, "--cpu", "--batch-size", 20)


def generated(data: Path, model: Path, path: Path, *options: object) -> tuple[list, str]:
    """Sentences of fairseq-generate's output, and its log; without ``--engine`` fairseq's own."""
    engine = () if "--engine" in options else ("--engine", "fairseq")
    done = fairseq("generate", data, "--path", model, *HOW, *engine, *options)
    path.write_text(done.stdout, encoding="utf-8")
    return outputs.read_generated(path), done.stdout + done.stderr


def require_same(ours: list, theirs: list) -> None:
    """The same hypotheses with the same scores and attention, but for a few candidates in a tie."""
    assert len(ours) == len(theirs) == 50
    ties = 0  # of candidates with equal scores either may come first
    for our, their in zip(ours, theirs, strict=True):
        assert (our.index, our.source, our.target) == (their.index, their.source, their.target)
        for our_hypothesis, their_hypothesis in zip(our.hypotheses, their.hypotheses, strict=True):
            assert our_hypothesis.score == pytest.approx(their_hypothesis.score, abs=1e-4)
            if our_hypothesis.text != their_hypothesis.text:
                ties += 1
                continue
            rows = zip(our_hypothesis.soft or (), their_hypothesis.soft or (), strict=True)
            for row, their_row in rows:
                assert row == pytest.approx(their_row, abs=1e-5)
    assert ties <= 6


@pytest.mark.parametrize("options", [(), ("--print-alignment", "soft", "--prefix-size", 1)])
def test_generate(copy_data: Path, copy_model: Path, tmp_path: Path, options: tuple):
    theirs, _ = generated(copy_data, copy_model, tmp_path / "out", *options)
    for engine in ("native", "torch") if options else ("native",):
        words = (*options, "--engine", engine)
        ours, log = generated(copy_data, copy_model, tmp_path / "out", *words)
        assert "instead of the engine" not in log
        require_same(ours, theirs)
        hypotheses = [hypothesis for sentence in ours for hypothesis in sentence.hypotheses]
        assert len(hypotheses) == 3 * 50
        assert {bool(hypothesis.soft) for hypothesis in hypotheses} == {bool(options)}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--diversity-rate", 0.5), "the engine has no diverse search"),
        (("--diverse-beam-groups", 2), "the engine has no diverse search"),
        (("--fp16",), "the "),
        (("--retain-dropout",), "the "),
    ],
)
def test_what_the_engine_lacks_is_left_to_fairseq(copy_data, copy_model, tmp_path, options, reason):
    theirs, _ = generated(copy_data, copy_model, tmp_path / "out", *options)
    ours, log = generated(copy_data, copy_model, tmp_path / "out", *options, "--engine", "native")
    assert f"fairseq's generator translates instead of the engine: {reason}" in log
    assert ours == theirs


def test_samples(copy_data: Path, copy_model: Path, tmp_path: Path):
    """The same for all batches; others with another seed."""

    def samples(*options: object) -> list:
        sampling = ("--sampling", "--task", "translation_ext", "--epsilon-sampling", 0.05)
        flags = ("--engine", "native", *sampling, "--nbest", 4, *options)
        sentences, log = generated(copy_data, copy_model, tmp_path / "out", *flags)
        assert "instead of the engine" not in log
        hypotheses = [hypothesis for sentence in sentences for hypothesis in sentence.hypotheses]
        # a task sets the search of ε after it has a generator; after 15 tokens </s> is forced
        drawn = [score for hypothesis in hypotheses for score in hypothesis.token_scores[:15]]
        assert min(drawn) > math.log2(0.05) - 1e-3
        return [
            [(hypothesis.text, hypothesis.score) for hypothesis in sentence.hypotheses]
            for sentence in sentences
        ]

    first = samples()
    assert samples("--batch-size", 7) == first
    assert samples("--seed", 2) != first
    assert len({text for sentence in first for text, _ in sentence}) > 60  # of 200


@pytest.mark.parametrize(("engine", "level"), [("native", "INFO"), ("native-int8", "WARNING")])
def test_translate_says_who_translates(copy_data, copy_model, engine, level, monkeypatch):
    """On a machine whose processor lacks the chosen instructions."""
    monkeypatch.setenv("FAIRSEQ_EXT_ENGINE", "none")
    words = ("translate", copy_data, "--path", copy_model, "--cpu", "--engine", engine)
    done = run("fairseq-ext", *words, stdin="1 2\n")
    assert f"{level}:fairseq_ext.generation.on_engine:fairseq's generator translates" in done.stderr


def test_the_engine_is_the_default(copy_data: Path, copy_model: Path, monkeypatch):
    """Of every command that translates: the digits are as the engine's, to the last one."""
    command = ("generate", copy_data, "--path", copy_model, *HOW)
    runs = [fairseq(*command, *engine) for engine in ((), ("--engine", "native"))]
    monkeypatch.setenv("FAIRSEQ_EXT_ENGINE", "none")
    runs += [fairseq(*command, *engine) for engine in (("--engine", "fairseq"), ())]
    logs = [done.stdout + done.stderr for done in runs]
    unnamed, named, theirs, missing = (
        [line for line in log.splitlines() if line[:2] in ("H-", "P-")] for log in logs
    )
    assert unnamed == named != theirs == missing != []
    assert "instead of the engine" not in logs[0]
    assert logs[3].count("translates instead of the engine: `FAIRSEQ_EXT_ENGINE`") == 1


# Bundles with a program in every command: no torch, no data folder, no options
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
    words = ("translate", copy_data, "--path", copy_model, "--engine", "native", *options)
    done = run("fairseq-ext", *words, "--json", theirs, stdin=LINES)
    assert text == done.stdout
    assert ours.read_text() == theirs.read_text()


def test_text_is_its_own_unless_told_otherwise(packed: Path, tmp_path: Path):
    rows = []
    for options in ((), ("--remove-bpe",)):
        words = ("translate", "--path", packed, "--json", tmp_path / "details", *options)
        without_torch(*words, stdin="13 3\n")
        rows += (tmp_path / "details").read_text().splitlines()
    as_pieces, as_word = rows  # as 1@@ and 3, and as one unknown word
    assert as_pieces != as_word


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
        ("--src tgt --tgt src", "`--src` and `--tgt` must be src and tgt"),
        ("--beam 9", "`--beam` is 9, but must be at most 7"),
        ("--mbr 2 --beam 2", "`--beam` does not go with `--mbr`"),
        ("--constraints ordered --sampling", "`--constraints` does not go with `--sampling`"),
        (
            "--constraints ordered --keep x",
            "`--keep` does not go with `--constraints`; give one of them.",
        ),
        ("--constraints", "constraint `unknown` has tokens that the model does not write."),
    ],
)
def test_options_that_do_not_go_with_it(copy_bundle: Path, options: str, message: str):
    words = ("translate", "--model", copy_bundle, "1\tunknown")
    assert message in error_line(*words, *options.split())


def test_it_votes_with_a_checkpoint(copy_data: Path, copy_model: Path, packed: Path):
    """In fairseq then: both are the same model."""
    lines = LINES.encode()
    ensemble = command("translate", copy_data, "--path", packed, copy_model, stdin=lines)
    assert ensemble == command("translate", "--path", packed, stdin=lines)


def test_a_checkpoint_finds_the_data_of_its_training(copy_data, copy_model, tmp_path):
    words = ("translate", "--path", copy_model)
    translations = command(*words, stdin=LINES.encode())
    assert translations == command("translate", copy_data, *words[1:], stdin=LINES.encode()) != ""
    lonely = with_data(copy_model, tmp_path / "gone", tmp_path / "model.pt")
    message = "must be the folder of fairseq-preprocess (`translate`: DATA;"
    assert message in error_line("translate", "--path", lonely)


def test_a_run_of_a_recipe_finds_its_data_from_anywhere(
    copy_data: Path, copy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was trained on ``bin``, in the folder two above the checkpoint's."""
    folder = tmp_path / "run" / "models" / "copying"
    folder.mkdir(parents=True)
    shutil.copytree(copy_data, tmp_path / "run" / "bin")
    with_data(copy_model, "bin", folder / "checkpoint_best.pt")
    monkeypatch.chdir(tmp_path)
    assert data_of(Path("run/models/copying/checkpoint_best.pt")) == tmp_path / "run" / "bin"
    monkeypatch.chdir(folder.parents[1])
    assert data_of(Path("models/copying/checkpoint_best.pt")) == tmp_path / "run" / "bin"


CONSTRAINED = ["w1 w2 w3\tw9\tw4 w5", "w7", "", "w3 w3 w2 w8\tw11"]


@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_translations_have_the_constraints(order: str, tmp_path: Path, caplog):
    """As fairseq-interactive translates, also from a bundle without torch."""
    folder = saved(tmp_path / "run", "transformer")
    text = "".join(f"{line}\n" for line in CONSTRAINED)
    flags = ("--constraints", order, "--beam", 4, "--max-len-b", 12, "--cpu")
    path = folder / "checkpoint_best.pt"
    options = ("--source-lang", "de", "--target-lang", "en", "--buffer-size", 9)
    done = fairseq(
        *("interactive", folder, "--path", path, *flags, *options, "--engine", "fairseq"),
        stdin=text.replace("\n\n", "\n"),
    )
    expected = hypotheses(done.stdout)
    expected.insert(CONSTRAINED.index(""), "")
    written = command("translate", folder, "--path", path, *flags, stdin=text.encode())
    assert "instead of the engine" not in caplog.text
    write.write(path, folder, tmp_path / "bundle")
    bundled = without_torch("translate", "--path", tmp_path / "bundle", *flags, stdin=text)
    assert written.splitlines() == bundled.splitlines() == expected
    for line, translation in zip(CONSTRAINED, expected, strict=True):
        for constraint in line.split("\t")[1:]:
            assert f" {constraint} " in f" {translation} "
    first = f" {expected[0]} "
    if order == "ordered":
        assert first.index(" w9 ") < first.index(" w4 w5 ")


# ``fairseq-ext shortlist``, and the commands that translate with what it writes
BEAM = ("--beam", 2, "--max-len-b", 12, "--cpu")


@pytest.fixture(scope="module")
def lists(copy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shortlist") / "lists"
    command("shortlist", copy_data, "-o", path, "--per-token", 1, "--frequent", 6)
    return path


def test_a_copying_corpus_lists_copies(lists: Path) -> None:
    title, frequent, *rows = lists.read_text().splitlines()
    assert title == "fairseq-ext shortlist 1\t10"
    assert len({*frequent.split(" ")} & {*"0123456789"}) == 6
    assert set(rows) == {f"{digit}\t{digit}" for digit in "0123456789"}


def test_every_command_translates_with_it_alike(copy_data, copy_model, lists, tmp_path):
    lines = ["1 2 3", "4 5", "9 9 9 9", "0 8"]
    text = "".join(f"{line}\n" for line in lines)
    options = ("--shortlist", lists)
    bundle = ("bundle", copy_model, "--data", copy_data, "-o")
    command(*bundle, tmp_path / "listed", *options)
    command(*bundle, tmp_path / "plain")
    command("describe", tmp_path / "listed", "--json", tmp_path / "sizes.json")
    sizes = json.loads((tmp_path / "sizes.json").read_text())
    assert sizes["bytes"]["shortlist"] == lists.stat().st_size
    checkpoint = (copy_data, "--path", copy_model, *options)
    languages = ("--source-lang", "src", "--target-lang", "tgt")
    done = fairseq("interactive", *checkpoint, *BEAM, *languages, stdin=text)
    translations = hypotheses(done.stdout)
    plain = ("--path", tmp_path / "plain", *options)
    for words in (("--path", tmp_path / "listed"), plain, checkpoint):
        written = command("translate", *words, *BEAM, stdin=text.encode())
        assert written.splitlines() == translations
    frequent = lists.read_text().splitlines()[1].split(" ")
    for line, translation in zip(lines, translations, strict=True):
        assert {*translation.split()} <= {*frequent, *line.split()}  # each word is its own list


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine", "fairseq"), "`--shortlist` is for the engine, but `--engine` is `fairseq`"),
        (("--score-reference",), "`--shortlist` is for the engine alone, but the engine scores no"),
        (("--diversity-rate", 0.5), "`--shortlist` is for the engine alone, but the engine has no"),
        (("--beam", 3), "the shortlist has 6 frequent tokens, but this search needs 8"),
    ],
)
def test_generate_refuses_it_where_it_has_no_effect(copy_data, copy_model, lists, options, message):
    words = ("generate", copy_data, "--path", copy_model, *BEAM, "--shortlist", lists, *options)
    done = fairseq(*words, ok=False)
    refused(done, message)


def test_other_data_are_refused(copy_data: Path, lists: Path, tmp_path: Path) -> None:
    line = error_line("shortlist", tmp_path, "-o", tmp_path / "lists")
    assert "has no binarized training data of a matching pair of languages" in line
    line = error_line("shortlist", copy_data, "--frequent", 0, "-o", lists)
    assert "`--frequent` must be at least 1, but is 0 instead." in line


def test_files_with_numbers_of_other_tokens_are_refused(copy_data, copy_model, lists, tmp_path):
    """The machine checks nothing: lists in a file are proven to be in range."""
    path = tmp_path / "bundle"
    command("bundle", copy_model, "--data", copy_data, "--shortlist", lists, "-o", path)
    content = (path / "shortlist.txt").read_text()
    (path / "shortlist.txt").write_text(content.replace("1\t1\n", "1\t11\n"))
    sign_again(path)
    with pytest.raises(CheckpointError, match=r"shortlist\.txt"):
        program_file.read(path)
    (path / "shortlist.txt").write_text(content)
    sign_again(path)
    outcomes = fuzz(path, 60, tmp_path)
    assert set(outcomes) <= {"refused", "run"}
    assert outcomes["run"] > 0
