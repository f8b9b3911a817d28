"""Split pairs in memory, directly by the rules, to compare the split on disk with the result."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.command_lines import SIDES
from fairseq_ext.corpora.near_duplicates import normalized
from fairseq_ext.text.cleaning import plain

SentencePair = tuple[str, str]


@dataclass
class Counts:
    """The numbers of pairs that were read, dropped or leaked."""

    read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    key: str | None = None
    leaks: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


def cleaned(pairs: Iterable[SentencePair], max_words: int, report: Counts) -> list[SentencePair]:
    """Drop repeated pairs, and pairs with a side that is empty or above ``max_words`` words."""
    distinct: dict[SentencePair, None] = {}
    for pair in pairs:
        report.read += 1
        source, target = map(plain, pair)
        if not source or not target:
            report.drop("empty side")
        elif max(source.count(" "), target.count(" ")) >= max_words:
            report.drop(f"more than {max_words} words")
        elif (source, target) in distinct:
            report.drop("repeated pair")
        else:
            distinct[source, target] = None
    return list(distinct)


def repeating_side(pairs: list[SentencePair]) -> int:
    """Return 0 if source sentences repeat more often (fewer distinct ones), 1 if targets do."""
    distinct = [len({normalized(pair[side]) for pair in pairs}) for side in (0, 1)]
    return int(distinct[1] < distinct[0])


def split(
    pairs: list[SentencePair],
    *,
    valid: int,
    test: int,
    key: int,
    salt: str = "1",
    strict: bool = True,
    report: Counts | None = None,
) -> dict[str, list[SentencePair]]:
    """Split ``pairs`` so that no (normalized) sentence of the key side is in two splits.

    The distinct key sentences are put in the order of their SHA-256 hashes; the first ``test``
    go into the test set, the next ``valid`` into the validation set, all others into train. If
    several pairs have one key sentence, valid and test keep a single one, so sizes are exact.

    Args:
        key: the side that decides, 0 for source or 1 for target.
        salt: hashed with each sentence; another salt gives another split.
        strict: also drop training pairs whose *other* side is in valid or test.
        report: receives the counts of dropped pairs, and of leaks on the other side.
    """
    report = report if report is not None else Counts()
    keys = [normalized(pair[key]) for pair in pairs]
    other_sides = [normalized(pair[1 - key]) for pair in pairs]
    order = sorted({*keys}, key=lambda text: (_hash(salt, text), text))
    assert len(order) > valid + test
    place = dict.fromkeys(order[:test], "test") | dict.fromkeys(order[test : test + valid], "valid")
    best = _one_pair_per_key(pairs, keys, place, salt)
    held_out = {
        name: {other_sides[i] for i in best if place[keys[i]] == name} for name in SPLITS[1:]
    }
    splits: dict[str, list[SentencePair]] = {name: [] for name in SPLITS}
    leaks = {"train": 0, "valid and test": len(held_out["valid"] & held_out["test"])}
    for index, pair in enumerate(pairs):
        name = place.get(keys[index], "train")
        if name != "train":
            if index in best:
                splits[name].append(pair)
            else:
                report.drop("further pair of a held-out sentence")
            continue
        leaked = any(other_sides[index] in texts for texts in held_out.values())
        leaks["train"] += leaked
        if leaked and strict:
            report.drop(_leak(SIDES[1 - key]))
        else:
            splits["train"].append(pair)
    report.key, report.leaks = SIDES[key], leaks
    return splits


def _leak(side: str) -> str:
    """Return the reason to drop a training pair whose sentence on this side is also held out."""
    return f"{side} sentence also in valid or test"


def _hash(salt: str, text: str) -> bytes:
    return hashlib.sha256(f"{salt}\n{text}".encode()).digest()


def _one_pair_per_key(
    pairs: list[SentencePair], keys: list[str], place: dict[str, str], salt: str
) -> set[int]:
    """Return the index of one pair for each key in ``place``: the pair with the smallest hash."""
    best: dict[str, tuple[bytes, int]] = {}
    for index, (pair, key) in enumerate(zip(pairs, keys, strict=True)):
        if key in place:
            candidate = (_hash(salt, "\t".join(pair)), index)
            best[key] = min(best.get(key, candidate), candidate)
    return {index for _, index in best.values()}
