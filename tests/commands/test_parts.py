"""Commands in parts write the plain command's lines, whoever is killed on the way."""

import io
import os
import random
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_ext.commands import translate
from fairseq_ext.text.reading import cut
from fairseq_ext.utils import locks, ray_workers
from fairseq_ext.utils.files import sha256
from fairseq_ext.utils.json_files import read_json
from tests.support.harness import (
    BIN,
    command,
    contents,
    error_line,
    leaves_no_trace,
    names,
    run,
    start,
    wait_for,
    write_lines,
)
from tests.support.killed import die_in_command

LENGTH = ("--max-len-b", "6", "--buffer-size", "7")


def text(path: Path, lines: int, seed: int = 1) -> Path:
    """Digits; every ninth line is empty."""
    draw = random.Random(seed)
    drawn = [" ".join(draw.choices("0123456789", k=draw.randint(1, 7))) for _ in range(lines)]
    return write_lines(path, [line if n % 9 else "" for n, line in enumerate(drawn, start=1)])


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--beam", 3, "--nbest", 2),
        ("--sampling", "--sampling-topk", 4, "--seed", 5),
        ("--sampling", "--nbest", 3),
        ("--mbr", 3),
    ],
)
def test_the_parts_are_the_plain_commands_lines(copy_bundle, tmp_path, options):
    inputs = (text(tmp_path / "a", 50), text(tmp_path / "b", 21, 2), text(tmp_path / "c", 3, 3))
    words = ("translate", "--path", copy_bundle, "--input", *inputs, *LENGTH, *options)
    command(*words, "-o", tmp_path / "plain", "--json", tmp_path / "plain.json")
    folder = ("--parts", tmp_path / "parts", "--part-lines", 21)
    command(*words, *folder, "-o", tmp_path / "whole", "--json", tmp_path / "whole.json")
    for ending in ("", ".json"):
        plain = (tmp_path / f"plain{ending}").read_bytes()
        assert plain
        assert (tmp_path / f"whole{ending}").read_bytes() == plain
    ends = (".jsonl", ".sha256", ".txt")
    files = [f"part-{number:06d}{end}" for number in range(5) for end in ends]
    assert names(tmp_path / "parts") == ["manifest.json", *files]


@pytest.mark.parametrize("engine", ["fairseq", "native"])
def test_samples_and_votes_of_checkpoints(copy_data, copy_model, tmp_path, engine):
    source, whole = text(tmp_path / "source", 40), tmp_path / "whole"
    for name, paths, options in (
        ("sampling", [copy_model], ("--sampling", "--seed", 3)),
        ("beam", [copy_model, copy_model], ("--beam", 2)),
    ):
        words = ("translate", copy_data, "--path", *paths, "--input", source, *LENGTH)
        words += ("--engine", engine, *options)
        plain = command(*words)
        for number in (2, 0, 1):  # in another order than the plain command's
            parted = ("--parts", tmp_path / name, "--part-lines", 14, "--shard", f"{number}/3")
            command(*words, *parted, "-o", whole)
        assert whole.read_text() == plain
        whole.unlink()


@given(
    texts=st.lists(st.lists(st.binary(max_size=3), max_size=9), max_size=3), size=st.integers(1, 5)
)
def test_parts_have_every_line_once(texts, size, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    paths = [folder / str(number) for number in range(len(texts))]
    for path, lines in zip(paths, texts, strict=True):
        path.write_bytes(b"\n".join(lines))
    all_lines = [line for path in paths for line in io.BytesIO(path.read_bytes())]
    parts = cut(paths, size)
    assert [line for part in parts for line in part.read()] == all_lines
    assert [part.number for part in parts] == [*range(len(parts))]
    assert all(1 <= part.lines == len([*part.read()]) <= size for part in parts)
    counted = 0
    for part in parts:
        assert part.before + part.first - 1 == counted
        counted += part.lines
    assert counted == len(all_lines)


@pytest.fixture
def worker(copy_bundle: Path, tmp_path: Path) -> list[str]:
    """Words of a command on 300 lines in 60 parts; ``plain`` has its translations."""
    source = text(tmp_path / "source", 300)
    words = ["translate", "--path", copy_bundle, "--input", source, *LENGTH, "--nbest", "2"]
    command(*words, "-o", tmp_path / "plain")
    words += ["--parts", tmp_path / "parts", "--part-lines", "5", "-o", tmp_path / "whole"]
    return [str(BIN / "fairseq-ext"), *map(str, words)]


def parts_of(folder: Path) -> list[Path]:
    return [*(folder / "parts").glob("part-*.txt")]


def files_of(numbers: Iterable[int]) -> list[str]:
    return [f"part-{number:06d}.{end}" for number in numbers for end in ("sha256", "txt")]


def require_plain_output(folder: Path) -> None:
    assert (folder / "whole").read_bytes() == (folder / "plain").read_bytes()
    # no locks, nothing half-written
    assert names(folder / "parts") == ["manifest.json", *files_of(range(60))]


def side_by_side(command_line: list[str]) -> None:
    """Run two processes of a command at a time; both must end well."""
    processes = [start(*command_line) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]


def test_killed_again_and_again_no_line_is_lost(worker: list[str], tmp_path: Path) -> None:
    draw = random.Random(7)
    for _ in range(8):
        die_in_command(draw.randint(1, 60), tmp_path, *worker[1:])
        assert not (tmp_path / "whole").exists()
    assert len(parts_of(tmp_path)) > 8
    assert start(*worker).wait() == 0
    require_plain_output(tmp_path)


def test_a_worker_does_the_part_of_a_killed_one(worker: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    first = start(*worker)
    wait_for(lambda: [*folder.glob(".part-*.lock")], first)
    first.send_signal(signal.SIGSTOP)  # it holds a part, perhaps, and does nothing
    second = start(*worker)
    deadline = time.monotonic() + 120
    while len(parts_of(tmp_path)) < 59 and second.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    first.wait()
    assert second.wait(timeout=120) == 0
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "plain").read_bytes()
    # Stopped between its part and the part's lock, the first held that lock until it was killed.
    assert start(*worker).wait(timeout=120) == 0
    require_plain_output(tmp_path)


def test_two_side_by_side(worker: list[str], tmp_path: Path) -> None:
    side_by_side(worker)
    require_plain_output(tmp_path)


def test_a_shard_does_its_own_parts(worker: list[str], tmp_path: Path) -> None:
    assert start(*worker, "--shard", "1/7").wait() == 0
    assert names(tmp_path / "parts") == ["manifest.json", *files_of(range(1, 60, 7))]
    assert not (tmp_path / "whole").exists()


def test_the_whole_is_written_again(worker: list[str], tmp_path: Path) -> None:
    command(*worker[1:])
    (tmp_path / "parts" / ".part-000007.lock").touch()  # as of a worker killed after its part
    command(*worker[1:])
    require_plain_output(tmp_path)
    (tmp_path / "whole").write_text("another file")
    command(*worker[1:])
    require_plain_output(tmp_path)


def test_details_alone(worker: list[str], tmp_path: Path) -> None:
    *words, _, _ = worker[1:]  # without the text
    command(*words, "--json", tmp_path / "details")
    without_parts = words[: words.index("--parts")]
    command(*without_parts, "-o", tmp_path / "plain", "--json", tmp_path / "expected")
    assert (tmp_path / "details").read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray cluster on this machine with one processor on each of two nodes."""
    pytest.importorskip("ray")
    utils = pytest.importorskip("ray.cluster_utils")
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def workers_of(cluster: Any) -> list[int]:
    """List the ids of our processes on all nodes of a cluster."""
    children = [
        pid
        for node in cluster.list_all_nodes()
        for path in Path(f"/proc/{node.all_processes['raylet'][0].process.pid}/task").iterdir()
        for pid in (path / "children").read_text().split()
    ]
    title = b"ray::_work_on_ray"
    return [int(pid) for pid in children if title in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_killed_workers_of_a_ray_cluster(cluster: Any, worker: list[str], tmp_path: Path) -> None:
    """They are killed once both nodes have theirs; Ray starts them again."""
    (tmp_path / "parts").mkdir()
    with locks.held(tmp_path / "parts" / ".part-000059.lock", wait=False):
        process = start(*worker, "--ray", cluster.address)
        wait_for(lambda: len(parts_of(tmp_path)) == 59, process)
        wait_for(lambda: len(workers_of(cluster)) == 2, process)
        for pid in workers_of(cluster):
            os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=240) == 0
    require_plain_output(tmp_path)


def test_workers_that_a_cluster_has_room_for() -> None:
    resources = {"CPU": 9.0, "GPU": 2.0, "memory": 1e9}
    assert ray_workers.workers(resources, 3, cpu=False) == [(1, 1), (1, 1), (0, 3), (0, 3)]
    assert ray_workers.workers(resources, 3, cpu=True) == [(0, 3)] * 3
    assert ray_workers.workers({"CPU": 1.0, "GPU": 1.0}, 1, cpu=False) == [(1, 1)]
    assert ray_workers.workers({"CPU": 2.0}, 4, cpu=False) == [(0, 4)]


def test_another_job_is_refused(copy_bundle: Path, tmp_path: Path) -> None:
    source, bundle = text(tmp_path / "source", 20), tmp_path / "bundle"
    shutil.copytree(copy_bundle, bundle)
    words = ("translate", "--path", bundle, "--input", source, "--parts", tmp_path / "p", *LENGTH)
    command(*words, "--part-lines", 9)
    before = contents(tmp_path / "p")
    for options, message in (
        (("--beam", 2), "`options --beam` was unset and not `2`. Choose another folder"),
        (("--lenpen", 0), "`options --lenpen` was unset and not `0.0`"),
        (("--no-tokenize",), "`options --tokenize` was unset and not `False`"),
        (("--json", tmp_path / "details"), "`details` was `False` and not `True`"),
    ):
        assert message in error_line(*words, "--part-lines", 9, *options)
    assert "`part_lines` was `9` and not `10000`" in error_line(*words)
    manifest = (bundle / "bundle.json").read_text()
    (bundle / "bundle.json").write_text(manifest + " ")
    assert "`files 1 sha256` was `" in error_line(*words, "--part-lines", 9)
    (bundle / "bundle.json").write_text(manifest)
    lines = source.read_text().splitlines()
    write_lines(source, [*lines[:-1], lines[-1][::-1] + " 1"])
    assert "`inputs 1 " in error_line(*words, "--part-lines", 9)
    assert contents(tmp_path / "p") == before


def test_a_part_that_was_changed_is_refused(copy_bundle: Path, tmp_path: Path) -> None:
    source, output = text(tmp_path / "source", 20), tmp_path / "whole"
    paths = ("--path", copy_bundle, "--input", source, "--parts", tmp_path / "p", "-o", output)
    words = ("translate", *paths, *LENGTH, "--part-lines", 9)
    command(*words)
    content = output.read_bytes()
    output.write_bytes(content.swapcase().replace(b"1", b"2"))  # damaged, and as large as before
    command(*words)
    assert output.read_bytes() == content
    part = tmp_path / "p" / "part-000001.txt"
    part.write_bytes(part.read_bytes().partition(b"\n")[2])
    assert "part-000001.txt is not what its worker wrote; delete it" in error_line(*words)
    assert output.read_bytes() == content
    part.unlink()
    command(*words)
    assert output.read_bytes() == content


@pytest.mark.parametrize("changes", ["source", "model.safetensors", "bundle.json"])
def test_a_file_that_changes_at_work_ends_the_work(copy_bundle, tmp_path, monkeypatch, changes):
    source = text(tmp_path / "source", 20)
    shutil.copytree(copy_bundle, tmp_path / "m")
    changing = source if changes == "source" else tmp_path / "m" / changes
    write = translate.write

    def write_and_change(*arguments: Any) -> int:
        number = write(*arguments)
        if "part-000001" in arguments[2].name:
            with changing.open("r+b") as file:  # in place, and as long as before
                file.write(changing.read_bytes()[::-1])
        return number

    monkeypatch.setattr(translate, "write", write_and_change)
    words = ["translate", "--path", tmp_path / "m", "--input", source, *LENGTH]
    error_line(*words, "--parts", tmp_path / "p", "--part-lines", 5, "-o", tmp_path / "whole")
    assert [path.name for path in (tmp_path / "p").glob("*.txt")] == ["part-000000.txt"]
    assert not (tmp_path / "whole").exists()


def test_skip_long_goes_on_where_a_line_was_too_long(copy_bundle: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "source", ["1 2 3"] * 9 + ["1 " * 2000] + ["3 4"] * 2)
    words = ["translate", "--path", copy_bundle, "--input", source, *LENGTH]
    parted = [*words, "--parts", tmp_path / "parts", "--part-lines", 4, "-o", tmp_path / "whole"]
    assert "leave such lines empty with `--skip-long`" in error_line(*parted)
    assert len(parts_of(tmp_path)) == 2
    command(*parted, "--skip-long")
    assert (tmp_path / "whole").read_text() == command(*words, "--skip-long")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shard", "0/2"), "`--shard` goes with `--parts`, which is missing."),
        (("--part-lines", 9), "`--part-lines` goes with `--parts`, which is missing."),
        (("--ray", "local"), "`--ray` goes with `--parts`, which is missing."),
        (("--parts", "p"), "`--parts` needs `--input`; standard input cannot be read again."),
        (("--parts", "p", "--input", "none"), "text file none does not exist"),
        (("--parts", "p", "--input", "in", "--shard", "2/2"), "`--shard` must be I/N with I"),
        (("--parts", "p", "--input", "in", "--part-lines", 0), "must be at least 1, but is 0"),
        (("--parts", ".", "--input", "in"), "has files, but no manifest.json; choose another"),
        (("--parts", ".", "--input", "in", "-o", "out"), "`--output` out is in the folder of"),
        (("--parts", ".", "--input", "in", "--json", "j"), "`--json` j is in the folder of"),
        (("--parts", "p", "--input", "bad"), "bad, line 2: not UTF-8"),
        (("--parts", "p", "--input", "in", "--nbest", 9), "`--nbest` must be at most `--beam`"),
        (("--parts", "p", "--input", "in", "--ray", "x", "--shard", "0/2"), "does not go with"),
    ],
)
def test_options_that_cannot_be(copy_bundle, tmp_path, options, message):
    text(tmp_path / "in", 4)
    (tmp_path / "bad").write_bytes(b"1\n\xff\n")
    leaves_no_trace(tmp_path, message, "translate", "--path", copy_bundle, *options)


# ``fairseq-ext corpus pairs --parts``: the plain command's files, whoever is killed on the way
OPTIONS = ("--src-lang", "es", "--tgt-lang", "en", "--max-words", "6", "--test", "30")
OPTIONS += ("--valid", "20", "--lowercase")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the command without parts; ``pairs.tsv`` beside it, for twelve parts.

    Some pairs are repeated, too long or short of a side.
    """
    folder, draw = tmp_path_factory.mktemp("plain"), random.Random(5)
    words = [f"w{number}" for number in range(60)]
    sides = [
        [" ".join(draw.choices(words, k=draw.randint(0, 8))) for _ in "12"] for _ in range(550)
    ]
    pairs = ["\t".join(draw.choice(sides)) for _ in range(12 * 50 - 7)]
    path = write_lines(folder / "pairs.tsv", pairs)
    command("corpus", "pairs", path, *OPTIONS, "--out", folder / "out", "--workers", 1)
    return folder


def in_parts(plain: Path, folder: Path) -> list[str]:
    """Words of the command in parts, which writes ``folder/out``."""
    words = ("corpus", "pairs", plain / "pairs.tsv", *OPTIONS, "--out", folder / "out")
    return [str(word) for word in (*words, "--parts", folder / "parts", "--part-lines", 50)]


def all_is_plain(plain: Path, folder: Path) -> None:
    assert contents(folder / "out") == contents(plain / "out")
    assert not [*(folder / "parts").glob(".*")]  # no locks, nothing half-written


def test_killed_again_and_again_nothing_is_lost(plain: Path, tmp_path: Path) -> None:
    draw = random.Random(7)
    words = in_parts(plain, tmp_path)
    for _ in range(7):
        die_in_command(draw.randint(1, 40), tmp_path, *words, "--workers", "1")
        assert not (tmp_path / "out").exists()
    assert start("fairseq-ext", *words).wait() == 0
    all_is_plain(plain, tmp_path)
    (tmp_path / "parts" / ".clean-000003.lock").touch()  # as of a worker killed after its part
    run("fairseq-ext", *words)
    all_is_plain(plain, tmp_path)


def test_workers_side_by_side(plain: Path, tmp_path: Path) -> None:
    side_by_side(["fairseq-ext", *in_parts(plain, tmp_path), "--workers", "1"])
    all_is_plain(plain, tmp_path)


def test_a_worker_without_a_folder_leaves_nothing_half_written(plain: Path, tmp_path: Path) -> None:
    words = in_parts(plain, tmp_path)[:-4]
    for number in (9, 25):
        die_in_command(number, tmp_path, *words, "--workers", "1")
        assert not [*(tmp_path / "out").glob("[!.]*")]
    run("fairseq-ext", *words)
    assert contents(tmp_path / "out") == contents(plain / "out")


def test_another_job_of_pairs_is_refused(plain: Path, copy_bundle: Path, tmp_path: Path) -> None:
    words = in_parts(plain, tmp_path)
    run("fairseq-ext", *words)
    before = contents(tmp_path / "parts")
    for command_line, message in (
        ((*words, "--salt", "2", "--overwrite"), "`options salt` was `1` and not `2`. Choose"),
        ((*words[:-2], "--overwrite"), "`part_lines` was `50` and not `200000`."),
        ((*words, "--parts", tmp_path / "out"), "`--parts` and `--output` are the same"),
    ):
        assert message in error_line(*command_line)
    translation = ("translate", "--path", copy_bundle, "--input", plain / "pairs.tsv", *words[-4:])
    assert "belongs to another command; choose another folder." in error_line(*translation)
    assert contents(tmp_path / "parts") == before


def test_files_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for side in ("es", "en"):
        write_lines(Path(side, "corpus"), [f"{side} {number}" for number in range(9)])
    flags = "corpus pairs --src-lang es --tgt-lang en --valid 1 --test 1 --parts parts --workers 1"
    words = (*flags.split(), "--source", "es/corpus", "--target", "en/corpus", "--out")
    command(*words, "out")
    inputs = read_json("out/manifest.json")["inputs"]
    sums = [sha256(Path(side, "corpus")) for side in ("es", "en")]
    assert [entry["sha256"] for entry in inputs] == sums
    message = "of another job, in which `inputs 1 sha256`"
    exchanged = (*words, "other", "--source", "en/corpus", "--target", "es/corpus")
    assert message in error_line(*exchanged)
    write_lines(Path("es/corpus"), [f"new {number}" for number in range(9)])
    assert message in error_line(*words, "other")
