"""Tables of translations, and the files that shortlists are kept in."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from fairseq_ext.commands.shortlist import _prefix as training_data
from fairseq_ext.engine import lexicon, shortlist
from fairseq_ext.engine.lexicon import END, Side
from fairseq_ext.utils.errors import DataError

SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>"]
SOURCE = [*SYMBOLS, "das", "haus", "buch", "ein"]
TARGET = [*SYMBOLS, "the", "house", "book", "a"]
TEXT = """fairseq-ext shortlist 1\t2
the a
haus\thouse the
buch\tbook
"""


def side(sentences: list[list[int]], vocabulary: int) -> Side:
    tokens = np.array([word for sentence in sentences for word in [*sentence, END]], np.uint16)
    return Side(tokens, np.cumsum([0, *(len(sentence) + 1 for sentence in sentences)]), vocabulary)


def random_text(count: int, seed: int) -> list[list[int]]:
    numbers = np.random.default_rng(seed)
    return [numbers.integers(3, 12, numbers.integers(0, 7)).tolist() for _ in range(count)]


def naive(sources: list[list[int]], targets: list[list[int]], iterations: int) -> dict:
    """t(f | e) with dictionaries; the empty word is None."""
    table: dict = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: Counter = Counter()
        totals: Counter = Counter()
        for source, target in zip(sources, targets, strict=True):
            for word in target:
                total = sum(table[e, word] for e in [None, *source])
                for e in [None, *source]:
                    counts[e, word] += table[e, word] / total
                    totals[e] += table[e, word] / total
        table = {pair: value / totals[pair[0]] for pair, value in counts.items()}
    return table


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("block", [1, 50, 1 << 22])
def test_model_1_is_that_of_dictionaries(iterations, block, monkeypatch):
    monkeypatch.setattr(lexicon, "BLOCK", block)
    sources, targets = random_text(40, 1), random_text(40, 2)
    table = lexicon.ibm1(side(sources, 13), side(targets, 14), iterations)
    expected = naive(sources, targets, iterations)
    keys = [(13 if e is None else e) * 14 + f for e, f in expected]
    assert sorted(keys) == table.keys.tolist()
    values = [expected[e, f] for _, (e, f) in sorted(zip(keys, expected, strict=True))]
    np.testing.assert_allclose(table.values, values, rtol=1e-12)


def test_words_are_translated_as_one_would_by_hand() -> None:
    """das Haus, das Buch, ein Buch: the example of Koehn (2010), figure 4.4."""
    source = side([[4, 5], [4, 6], [7, 6]], len(SOURCE))
    target = side([[4, 5], [4, 6], [7, 6]], len(TARGET))
    lists = lexicon.likely(lexicon.ibm1(source, target, 20), source, target, 1)
    assert [words.tolist() for words in lists] == [[], [], [], [], [4], [5], [6], [7]]
    assert lexicon.frequent(target, 2).tolist() == [4, 6]


def test_lists_are_ordered_and_cut() -> None:
    source, target = side([[4], [4], [4]], 6), side([[5, 3], [5], [0, 5, 1]], 6)
    table = lexicon.ibm1(source, target, 2)
    likely = [words.tolist() for words in lexicon.likely(table, source, target, 9)]
    assert likely[4:] == [[5, 3], []]
    assert [words.tolist() for words in lexicon.likely(table, source, target, 1)][4:] == [[5], []]
    assert lexicon.frequent(target, 9).tolist() == [5, 3]


def test_the_least_probable_pairs_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, targets = random_text(60, 1), random_text(60, 2)
    limit, complete = 40, lexicon.ibm1(side(sources, 13), side(targets, 14), 1)
    monkeypatch.setattr(lexicon, "MOST", limit)
    limited = lexicon.ibm1(side(sources, 13), side(targets, 14), 3)
    assert len(limited.keys) == limit // 2 < len(complete.keys)
    present = np.isin(complete.keys, limited.keys)
    assert complete.values[present].min() >= complete.values[~present].max()
    words = limited.keys // 14
    np.testing.assert_allclose([limited.values[words == e].sum() for e in set(words)], 1)


@pytest.mark.parametrize("langs", [("en", "es"), ("pt-BR", "en"), ("en-GB", "en"), ("en", "en-GB")])
def test_data_serve_both_directions(langs: tuple[str, str], tmp_path: Path) -> None:
    prefix = tmp_path / f"train.{'-'.join(langs)}"
    for language in langs:
        (tmp_path / f"{prefix.name}.{language}.idx").touch()
    assert training_data(tmp_path, None, None) == (prefix, langs)
    for pair in (langs, langs[::-1]):
        assert training_data(tmp_path, *pair) == (prefix, pair)
    for pair in (("en", "de"), ("fr", None)):
        with pytest.raises(DataError, match="no binarized training data of a matching pair"):
            training_data(tmp_path, *pair)
    for language in ("de", langs[1]):
        (tmp_path / f"train.de-{langs[1]}.{language}.idx").touch()
    with pytest.raises(DataError, match="several pairs of languages; choose one by `--src` and"):
        training_data(tmp_path, None, langs[1])


def test_files_keep_a_shortlist(tmp_path: Path) -> None:
    path = tmp_path / "lists"
    shortlist.write(path, ["the", "a"], {"haus": ["house", "the"], "buch": ["book"]})
    assert path.read_text() == TEXT
    reread = shortlist.read(path, SOURCE, TARGET)
    assert reread.of([5, END], [END]).tolist() == [2, 4, 5, 7]
    assert reread.of([4, 6, 99], []).tolist() == [4, 6, 7]
    source, target = side([[5, 6], [4]], 8), side([[4, 5, 6], [5, 7]], 8)
    assert shortlist.coverage(reread, source, target) == (4 / 5, 3)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("shortlist 1", "shortlist 2", 1),
        ("\t2\n", "\t3\n", 1),
        ("\t2\n", "\t1\n", 1),
        ("buch\tbook\n", "", 1),
        ("book\n", "book", 1),
        ("the a", "the film", 2),
        ("the a", "", 2),
        ("buch\tbook", "buch\tbook ", 4),
        ("buch\tbook", "buch book", 4),
        ("buch\t", "film\t", 4),
        ("buch\t", "haus\t", 4),
        (TEXT, "", 1),
        (TEXT, "fairseq-ext shortlist 1\t-1\n", 1),
        ("the", "\xff", 1),  # not UTF-8
    ],
)
def test_damaged_files_are_refused(old: str, new: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "lists"
    path.write_bytes(TEXT.replace(old, new).encode("latin-1"))
    with pytest.raises(DataError, match=f"^{path}, line {line}: .* other dictionaries. Make it"):
        shortlist.read(path, SOURCE, TARGET)
    path.unlink()
    with pytest.raises(DataError, match="does not exist"):
        shortlist.read(path, SOURCE, TARGET)
