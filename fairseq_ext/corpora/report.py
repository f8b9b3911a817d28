"""Reports of a preparation: a manifest for comparing runs, and tables to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_ext.corpora.catalogue import Corpus
from fairseq_ext.corpora.streams import KEPT

TOLERANCE = 1 / 1000  # for numbers that depend on the tokenizer's release
TRAINING = ("train", "valid")  # splits; all others are test sets
Manifest = dict[str, Any]


def manifest(
    name: str,
    corpus: Corpus,
    libraries: dict[str, str],
    text: Manifest,
    bpe: Manifest | None,
    checksums: dict[str, str],
) -> Manifest:
    """Build the manifest, which is equal for equal runs: it has no paths or times.

    ``text`` has reports of the parts and counts of the splits, ``bpe`` the report of the subwords,
    or None without them.
    """
    parts, splits = text["parts"], {}
    for split, counts in text["splits"].items():
        splits[split] = {"words": counts, "subwords": bpe["fates"][split][KEPT] if bpe else None}
    fates = {part: report["fates"] for part, report in parts.items()}
    if bpe:
        fates |= {
            f"subwords of {split}": tally for split, tally in bpe["fates"].items() if len(tally) > 1
        }
    flags = corpus.dictionary if corpus.merges else corpus.word_dictionary
    flags = flags or (corpus.dictionary if "--joined-dictionary" in corpus.dictionary else ())
    pair_counts = {split: (size["subwords"] or size["words"])[0] for split, size in splits.items()}
    pair_counts["train read"] = sum(
        sum(counts[0] for counts in fates[source.name].values()) for source in corpus.train
    )
    return {
        "corpus": name,
        "protocol": dataclasses.asdict(corpus),
        "libraries": libraries,
        "archives": {k: v for part in parts.values() for k, v in part["origin"].items()},
        "fates": fates,
        "splits": splits,
        "known counts": {
            label: {"known": expected, "found": pair_counts[label], "exact": exact}
            for exact, kind in ((True, corpus.exact), (False, corpus.expected))
            for label, expected in kind.items()
            if label in pair_counts  # further tests may be missing
        },
        "fairseq-preprocess": [
            *("--source-lang", corpus.src, "--target-lang", corpus.tgt),
            *flags,
        ],
        "sha256": checksums,
    }


def wrong_counts(manifest: Manifest) -> list[str]:
    """Describe each count that differs too much from the known one."""
    return [
        f"{label}: {count['found']:,} pairs instead of {count['known']:,}"
        for label, count in manifest["known counts"].items()
        if abs(count["found"] - count["known"])
        > (0 if count["exact"] else TOLERANCE * count["known"])
    ]


def summary(manifest: Manifest, ready: Path) -> str:
    """Return tables of kept and dropped pairs, of splits, and of known counts."""
    protocol = manifest["protocol"]
    src, tgt = protocol["src"], protocol["tgt"]
    fates = [("text", "", "pairs", f"{src} tokens", f"{tgt} tokens")]
    for name, counts in manifest["fates"].items():
        order = sorted(counts.items(), key=lambda item: (item[0] != KEPT, item[0]))
        for fate, numbers in order:
            fate = fate if fate == KEPT else f"dropped, {fate}"
            fates.append((name, fate, *(f"{number:,}" for number in numbers)))
            name = ""
    splits = [("split", "in", "pairs", f"{src} tokens", f"{tgt} tokens")]
    for name, kinds in manifest["splits"].items():
        for kind, numbers in kinds.items():
            if numbers:
                splits.append((name, kind, *(f"{number:,}" for number in numbers)))
                name = ""
    flags = " ".join(manifest["fairseq-preprocess"])
    tests = ",".join(str(ready / name) for name in manifest["splits"] if name not in TRAINING)
    return "\n".join(
        [
            *_aligned(fates),
            "",
            *_aligned(splits),
            "",
            *(_known(label, count) for label, count in manifest["known counts"].items()),
            f"ready: fairseq-preprocess {flags} --trainpref {ready / 'train'} "
            f"--validpref {ready / 'valid'} --testpref {tests} --destdir …",
        ]
    )


def _known(label: str, count: dict[str, Any]) -> str:
    if count["found"] == count["known"]:
        return f"{label}: {count['found']:,} pairs, as known"
    reason = "" if count["exact"] else " (may differ a little with the tokenizer's release)"
    return f"{label}: {count['found']:,} pairs, but {count['known']:,} are known{reason}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
