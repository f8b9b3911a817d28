"""``fairseq-ext corpus pairs --parts``: the plain command's files, whoever is killed on the way."""

import random
from pathlib import Path

import pytest

from fairseq_ext.utils.files import sha256
from fairseq_ext.utils.json_files import read_json
from tests.support.harness import command, error_line, run, start, write_lines
from tests.support.killed import die_in_command

OPTIONS = ("--src-lang", "es", "--tgt-lang", "en", "--max-words", "6", "--test", "30")
OPTIONS += ("--valid", "20", "--lowercase")
PARTS = 12


def text(path: Path) -> Path:
    """Pairs, some of them repeated, too long or short of a side."""
    draw = random.Random(5)
    words = [f"w{number}" for number in range(60)]
    sides = [
        [" ".join(draw.choices(words, k=draw.randint(0, 8))) for _ in "12"] for _ in range(550)
    ]
    pairs = ["\t".join(draw.choice(sides)) for _ in range(PARTS * 50 - 7)]
    return write_lines(path, pairs)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the command without parts; ``pairs.tsv`` beside it."""
    folder = tmp_path_factory.mktemp("plain")
    text(folder / "pairs.tsv")
    words = ("corpus", "pairs", folder / "pairs.tsv", *OPTIONS)
    command(*words, "--out", folder / "out", "--workers", 1)
    return folder


def in_parts(plain: Path, folder: Path) -> list[str]:
    """Words of the command in parts, which writes ``folder/out``."""
    words = ("corpus", "pairs", plain / "pairs.tsv", *OPTIONS, "--out", folder / "out")
    return [str(word) for word in (*words, "--parts", folder / "parts", "--part-lines", 50)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def all_is_plain(plain: Path, folder: Path) -> None:
    assert contents(folder / "out") == contents(plain / "out")
    assert not [*(folder / "parts").glob(".*")]  # no locks, nothing half-written


def test_the_corpus_is_whole(plain: Path) -> None:
    written = {*contents(plain / "out")}
    sides = {f"{split}.{side}" for split in ("train", "valid", "test") for side in ("es", "en")}
    assert written == {"manifest.json", "text.json", *sides}


@pytest.mark.system
def test_killed_again_and_again_nothing_is_lost(plain: Path, tmp_path: Path) -> None:
    draw = random.Random(7)
    words = in_parts(plain, tmp_path)
    for _ in range(7):
        die_in_command(draw.randint(1, 40), tmp_path, *words, "--workers", "1")
        assert not (tmp_path / "out").exists()
    assert start("fairseq-ext", *words).wait() == 0
    all_is_plain(plain, tmp_path)


@pytest.mark.system
def test_workers_side_by_side(plain: Path, tmp_path: Path) -> None:
    words = in_parts(plain, tmp_path)
    processes = [start("fairseq-ext", *words, "--workers", "1") for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    all_is_plain(plain, tmp_path)


def test_the_lock_of_a_worker_that_was_killed_behind_its_part_is_removed(
    plain: Path, tmp_path: Path
) -> None:
    words = in_parts(plain, tmp_path)
    run("fairseq-ext", *words)
    (tmp_path / "parts" / ".clean-000003.lock").touch()
    run("fairseq-ext", *words)
    all_is_plain(plain, tmp_path)


@pytest.mark.system
def test_a_worker_without_a_folder_leaves_nothing_half_written(plain: Path, tmp_path: Path) -> None:
    words = in_parts(plain, tmp_path)[:-4]
    for number in (9, 25):
        die_in_command(number, tmp_path, *words, "--workers", "1")
        assert not [*(tmp_path / "out").glob("[!.]*")]
    run("fairseq-ext", *words)
    assert contents(tmp_path / "out") == contents(plain / "out")


def test_another_job_is_refused(plain: Path, tmp_path: Path) -> None:
    words = in_parts(plain, tmp_path)
    run("fairseq-ext", *words)
    before = contents(tmp_path / "parts")
    for command_line, message in (
        ((*words, "--salt", "2", "--overwrite"), "`options salt` was `1` and not `2`. Choose"),
        ((*words[:-2], "--overwrite"), "`part_lines` was `50` and not `200000`."),
        ((*words, "--parts", tmp_path / "out"), "`--parts` and `--output` are the same"),
    ):
        assert message in error_line(*command_line)
    assert contents(tmp_path / "parts") == before


def aligned(folder: Path, out: str, *words: str) -> list[str]:
    """Words of the command for two files of one name, which writes ``folder/out``."""
    languages = ("--src-lang", "es", "--tgt-lang", "en", "--valid", "1", "--test", "1")
    sides = ("--source", str(folder / "es" / "corpus"), "--target", str(folder / "en" / "corpus"))
    into = ("--out", str(folder / out), "--parts", str(folder / "parts"))
    return ["corpus", "pairs", *sides, *languages, *into, "--workers", "1", *words]


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for side in ("es", "en"):
        (tmp_path / side).mkdir()
        write_lines(tmp_path / side / "corpus", [f"{side} {number}" for number in range(9)])
    run("fairseq-ext", *aligned(tmp_path, "out"))
    inputs = read_json(tmp_path / "out" / "manifest.json")["inputs"]
    sums = [sha256(tmp_path / side / "corpus") for side in ("es", "en")]
    assert [entry["sha256"] for entry in inputs] == sums
    exchanged = aligned(tmp_path, "other")
    exchanged[3], exchanged[5] = exchanged[5], exchanged[3]
    assert "of another job, in which `inputs 1 sha256`" in error_line(*exchanged)
    write_lines(tmp_path / "es" / "corpus", [f"new {number}" for number in range(9)])
    assert "of another job, in which `inputs 1 sha256`" in error_line(*aligned(tmp_path, "other"))
