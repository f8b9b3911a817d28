"""`fairseq-generate --num-shards`: together the shards are the whole set, line for line."""

import re
from pathlib import Path

import pytest

from fairseq_ext.plugin.repairs.generation import require_shard
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import fairseq, run

pytestmark = pytest.mark.system
SENTENCE = re.compile(r"[STHDP]-\d+\t")


def lines(output: str) -> list[str]:
    """What was printed on sentences: sources, hypotheses, scores."""
    return [line for line in output.splitlines() if SENTENCE.match(line)]


@pytest.fixture(scope="module")
def command(copy_data: Path, copy_model: Path) -> tuple[object, ...]:
    """Seven batches, of eight sentences each but the last."""
    return ("generate", copy_data, "--path", copy_model, "--cpu", "--batch-size", 8, "--beam", 2)


@pytest.fixture(scope="module")
def complete(command: tuple[object, ...]) -> list[str]:
    return lines(fairseq(*command).stdout)


@pytest.mark.parametrize("count", [2, 9])
def test_the_shards_are_the_whole_set(command, complete, tmp_path, count):
    """With the same scores to the last digit; two of nine shards have no batch."""
    shards = []
    for shard in range(count):
        done = fairseq(*command, "--num-shards", count, "--shard-id", shard)
        shards.append(lines(done.stdout))
        (tmp_path / f"{shard}.txt").write_text(done.stdout, encoding="utf-8")
        assert (f"shard {shard} of {count} has no sentences" in done.stderr) == (not shards[-1])
    assert sorted(line for shard in shards for line in shard) == sorted(complete)
    assert len(complete) == 50 * 5
    assert [bool(shard) for shard in shards] == [shard < 7 for shard in range(count)]
    (tmp_path / "whole.txt").write_text("\n".join(complete), encoding="utf-8")
    texts = []
    for name, options in (
        ("together", [tmp_path / f"{shard}.txt" for shard in reversed(range(count))]),
        ("at-once", [tmp_path / "whole.txt"]),
    ):
        out = tmp_path / name
        run("fairseq-ext", "hypotheses", *options, "--expected", 50, "-o", out)
        texts.append(out.read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) == 50


def test_shards_share_a_results_folder(command, complete, copy_data, tmp_path):
    out = tmp_path / "out"
    for shard in range(2):
        fairseq(*command, "--num-shards", 2, "--shard-id", shard, "--results-path", out)
    names = ["generate-test.0-of-2.txt", "generate-test.1-of-2.txt"]
    assert sorted(path.name for path in out.iterdir()) == names
    result = [(out / name).read_text(encoding="utf-8") for name in names]
    assert sorted(lines(result[0]) + lines(result[1])) == sorted(complete)
    reference = copy_data.parent / "text" / "test.tgt"
    score = ("fairseq-ext", "score", "--ref", reference, "--generated")
    together = run(*score, *(out / name for name in names)).stdout
    assert together.count("BLEU") >= 2
    (tmp_path / "whole.txt").write_text("\n".join(complete), encoding="utf-8")
    assert together == run(*score, tmp_path / "whole.txt").stdout
    one_alone = run(*score, out / names[0], ok=False).stderr
    assert "lacks" in one_alone
    twice = run(*score, out / names[0], out / names[0], out / names[1], ok=False).stderr
    assert "occurs twice; give the output of one run, each shard of it once" in twice
    assert "Traceback" not in one_alone + twice


@pytest.mark.parametrize(
    ("count", "shard", "output"),
    [
        (2, 2, "`--shard-id` must be from 0 to 1, as `--num-shards` is 2, but is 2"),
        (2, -1, "`--shard-id` must be from 0 to 1"),
        (1, 1, "`--shard-id` must be from 0 to 0, as `--num-shards` is 1"),
        (0, 0, "`--num-shards` must be at least 1, but is 0"),
        (-3, 0, "`--num-shards` must be at least 1"),
    ],
)
def test_shards_that_there_are_not_are_refused(count: int, shard: int, output: str) -> None:
    with pytest.raises(ConfigError, match=output.replace("(", r"\(")):
        require_shard(count, shard)


def test_commands_refuse_shards(command: tuple[object, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for options, output in (
        (("--num-shards", 2, "--shard-id", 2, "--results-path", out), "from 0 to 1"),
        (("--num-shards", 2, "--distributed-world-size", 2), "both split the set; give one"),
    ):
        done = fairseq(*command, *options, ok=False)
        assert output in done.stderr
        assert "Traceback" not in done.stderr
    assert not out.exists()
    done = fairseq("interactive", *command[1:], "--num-shards", 2, ok=False, stdin="1 2\n")
    assert "`--num-shards` is for fairseq-generate; leave it out" in done.stderr
