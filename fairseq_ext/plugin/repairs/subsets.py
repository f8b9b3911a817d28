"""Several validation sets, and training sets in several parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fairseq_ext.plugin.table import Layer, Patch, around


@around
def names_of_subsets(original: Callable, dataset_path: str) -> set[str]:
    """Return names as `--valid-subset` takes them: ``valid1``, not ``valid1.de-en.de``."""
    return {name.partition(".")[0] for name in original(dataset_path)}


@around
def once_by_default(
    original: Callable, self: Any, datasets: Any, sample_ratios: int | Sequence[int] = 1
) -> None:
    """Take a ratio of -1, the default of `--upsample-primary`, as 1: no part is repeated."""
    if not isinstance(sample_ratios, int):
        sample_ratios = [1 if ratio < 0 else ratio for ratio in sample_ratios]
    original(self, datasets, sample_ratios)


PATCHES = (
    Patch(
        name="several validation sets",
        kind="repair",
        reason="fairseq-train takes the sets that `--valid-subset valid,valid1` names for ignored "
        "ones, and ends: it compares names of sets with names of files",
        layers=(Layer("fairseq.data.data_utils:_find_extra_valid_paths", names_of_subsets),),
    ),
    Patch(
        name="sets in several parts",
        kind="repair",
        reason="training on train and train1, and `--combine-valid-subsets`, end in “negative "
        "dimensions are not allowed”: `--upsample-primary` is -1 by default",
        layers=(Layer("fairseq.data:ConcatDataset.__init__", once_by_default),),
    ),
)
