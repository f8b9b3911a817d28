"""The start of large corpora is fairseq's: the same order, the same batches."""

import numpy as np
import pytest
from fairseq.data import Dictionary, LanguagePairDataset, ListDataset, data_utils

from fairseq_ext import register
from fairseq_ext.plugin.features import large_corpora

register()
SENTENCES = 1_001


def sizes_up_to(longest: int, seed: int = 1) -> np.ndarray:
    sizes = np.random.default_rng(seed).integers(1, longest, SENTENCES, np.int32, endpoint=True)
    sizes[seed] = longest
    return sizes


def pairs_of(src: np.ndarray, tgt: np.ndarray | None, **options: object) -> LanguagePairDataset:
    words = Dictionary()
    sides = [None if side is None else ListDataset(range(len(side)), side) for side in (src, tgt)]
    return LanguagePairDataset(sides[0], src, words, sides[1], tgt, words, **options)


def stock(method: object) -> object:
    """fairseq's own, beneath every patch."""
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method


def ordered_by(function: object, pairs: LanguagePairDataset) -> np.ndarray:
    with data_utils.numpy_seed(7):
        return function(pairs)


# One key of 16 bits, two, the longest that has one, and one more
@pytest.mark.parametrize("longest", [(1, 1), (50, 50), (255, 255), (255, 256), (3, 65535)])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("block", [1, 64, 1 << 14])
def test_the_order_is_fairseqs(longest, shuffle, block, monkeypatch):
    monkeypatch.setattr(large_corpora, "BLOCK", block)
    src, tgt = sizes_up_to(longest[0]), sizes_up_to(longest[1], 2)
    for pairs in (pairs_of(src, tgt, shuffle=shuffle), pairs_of(src, None, shuffle=shuffle)):
        ours = ordered_by(LanguagePairDataset.ordered_indices, pairs)
        assert ours.dtype == np.int64
        theirs = ordered_by(stock(LanguagePairDataset.ordered_indices), pairs)
        np.testing.assert_array_equal(ours, theirs)


def test_what_needs_more_than_16_bits_is_left_to_fairseq(monkeypatch):
    monkeypatch.setattr(large_corpora, "random_by_length", None)  # it is not called
    pairs = pairs_of(sizes_up_to(65_536), sizes_up_to(9, 2))
    ours = ordered_by(LanguagePairDataset.ordered_indices, pairs)
    np.testing.assert_array_equal(
        ours, ordered_by(stock(LanguagePairDataset.ordered_indices), pairs)
    )


def test_sizes_are_kept_once():
    src, tgt = sizes_up_to(50), sizes_up_to(60, 2)
    pairs = pairs_of(src, tgt)
    assert np.shares_memory(pairs.src_sizes, pairs.sizes)
    assert np.shares_memory(pairs.tgt_sizes, pairs.sizes)
    np.testing.assert_array_equal(pairs.sizes, np.stack([src, tgt], 1))
    np.testing.assert_array_equal(pairs.src_sizes, src)
    np.testing.assert_array_equal(pairs.tgt_sizes, tgt)
    assert pairs.size(3) == (src[3], tgt[3])


@pytest.mark.parametrize("part", [64, 101, 500])
@pytest.mark.parametrize("multiple", [1, 3, 8])
@pytest.mark.parametrize(
    "limits", [{"max_tokens": 61}, {"max_tokens": 400}, {"max_sentences": 5}, {}]
)
@pytest.mark.parametrize("by_length", [True, False])
def test_batches_of_parts_are_those_of_the_whole(part, multiple, limits, by_length, monkeypatch):
    pairs = pairs_of(sizes_up_to(50), sizes_up_to(60, 2))
    indices = pairs.ordered_indices() if by_length else np.random.permutation(SENTENCES)
    options = {**limits, "required_batch_size_multiple": multiple}
    batches = pairs.batch_by_size(indices, **options)
    monkeypatch.setattr(large_corpora, "PART", part)
    parts = pairs.batch_by_size(indices, **options)
    assert list(map(list, parts)) == list(map(list, batches))
    assert sorted(np.concatenate(parts)) == list(range(SENTENCES))
