"""The corpus that comes with the package: whole, attributed, and split without leaks."""

import functools
import hashlib
import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_ext.corpora import SPLITS, near_duplicates, tatoeba
from tests.support.harness import command, leaves_no_trace, read_lines

UNPACKED = "6ec60e212f812ee3430f7568ea6f33b6fb080e32193c5952e8da0ee8ba45574c"
"""SHA-256 of ``spa-eng/spa.txt`` as www.manythings.org/anki had it."""
SIZE = 118_964


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Let all tests share the pairs that the first one reads, in a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tatoeba, "read_pairs", functools.cache(tatoeba.read_pairs))
        yield


def test_the_file_is_the_published_one_in_at_most_two_megabytes() -> None:
    assert tatoeba.PAIRS.stat().st_size <= 2_000_000
    text = lzma.decompress(tatoeba.PAIRS.read_bytes())
    assert hashlib.sha256(text).hexdigest() == UNPACKED
    about = tatoeba.ATTRIBUTION.read_text(encoding="utf-8")
    for fact in (UNPACKED, f"{SIZE:,}", "CC BY 2.0 FR", "tatoeba.org", "manythings.org"):
        assert fact in about
    pairs = tatoeba.read_pairs()
    assert len(pairs) == SIZE
    assert all(english and spanish for english, spanish in pairs)
    assert ("Where is the library?", "¿Dónde está la biblioteca?") in pairs


def written(folder: Path) -> dict[str, list[tuple[str, ...]]]:
    """Read the pairs of each split, English first."""
    splits = {}
    for split in SPLITS:
        sides = (read_lines(folder / f"{split}.{side}") for side in ("en", "es"))
        splits[split] = list(zip(*sides, strict=True))
    return splits


def test_a_sample_is_always_the_same_and_has_no_sentence_twice(tmp_path: Path) -> None:
    sizes = {"train": 300, "valid": 20, "test": 50}
    drawn = tatoeba.sample(sizes)
    assert {split: len(pairs) for split, pairs in drawn.items()} == sizes
    for side in (0, 1):
        sentences = [pair[side] for pairs in drawn.values() for pair in pairs]
        assert len(set(sentences)) == 370
    lengths = [len(english) for english, _ in drawn["test"]]
    assert min(lengths) < 20
    assert max(lengths) > 40
    printed = "train 300 pairs, valid 20 pairs, test 50 pairs\n"
    assert command("corpus", "tatoeba", "--sample", "300,20,50", "--out", tmp_path) == printed
    assert written(tmp_path) == drawn
    assert (tmp_path / "LICENCE.md").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sample", "30,4"], "`30,4` must be three numbers of pairs"),
        (["--sample", "200000,4,5"], "ask for fewer"),
        (["--sample", "9,4,5", "--test", "4"], "`--sample` gives all sizes; leave `--test` out"),
        (["--test", "1501"], "`--test 1501` is more than the 1,500 pairs that are held out"),
    ],
)
def test_clear_errors(tmp_path: Path, words: list[str], message: str) -> None:
    leaves_no_trace(tmp_path, message, "corpus", "tatoeba", *words, "--out", tmp_path / "out")


def test_the_command_holds_out_the_groups_of_the_shipped_models(tmp_path: Path) -> None:
    command("corpus", "tatoeba", "--valid", 1000, "--out", tmp_path)
    splits = written(tmp_path)
    assert [len(pairs) for pairs in splits.values()] == [116_464, 1000, 1500]
    groups = near_duplicates.group_pairs([pair for pairs in splits.values() for pair in pairs])
    assert not {*groups[116_464:]} & {*groups[:116_464]}
    assert "CC BY 2.0 FR" in (tmp_path / "LICENCE.md").read_text(encoding="utf-8")
