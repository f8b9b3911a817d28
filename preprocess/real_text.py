#!/usr/bin/env python
"""Prepare one English–German corpus from the public texts in a folder.

    python preprocess/real_text.py --from texts --out runs/data/real_en_de

The script reads these texts, plain or ``.gz``, if they are in the folder or its subfolders:

- LibreOffice's help: Debian's packages libreoffice-help-de and -en-us (``.deb``), or their folders
  ``help/de`` and ``help/en-US``. One page in about twenty goes to the test set ``test_help``,
  others to ``train``.
- WMT's news test sets: ``train`` gets ``news-test2008``, ``newstest2009`` … ``newstest2012`` and
  the second half of ``newstest2013``, ``valid`` the first half of ``newstest2013``, and ``test``
  ``newstest2014`` … ``newstest2018``. Those of 2019 and 2020 are test sets of their own.
- Multi30k's captions as written: ``train`` goes to ``train``, ``val`` to ``valid``. The test sets
  of 2016 to 2018 are test sets of their own.
- Tatoeba, from manythings.org/anki: ``deu-eng.zip`` goes to ``train``.
- TICO-19: ``tico-19.en`` and ``tico-19.de`` are a test set of their own.

A training pair is left out if a held-out pair has the same source or target. A held-out pair of
help pages is left out if it has a near-duplicate in the training text. ``sources.json`` has the
number of pairs, checksum, licence and domain of each text in each split. A text that never changes
is refused if its checksum is wrong.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.catalogue import MULTI30K_LICENCE, WMT_LICENCE, Corpus, Source
from fairseq_ext.corpora.contamination import find
from fairseq_ext.corpora.markup import Rules
from fairseq_ext.corpora.official import Preparation, summary
from fairseq_ext.corpora.readers.two_files import help_pages
from fairseq_ext.corpora.streams import write_pairs
from fairseq_ext.corpora.translation_files import accepted
from fairseq_ext.text import reading
from fairseq_ext.text.cleaning import plain
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.files import write_all

LANGUAGES = ("en", "de")
HELD_OUT_PAGES = 20  # of about this many pages of help, one is held out
HALVED = "newstest2013"  # one half is for validation, the other for training
LICENCES = {
    "news": WMT_LICENCE,
    "captions": MULTI30K_LICENCE,
    "medicine": "CC0",
    "help": "MPL-2.0, LibreOffice",
    "phrases": "CC BY 2.0 FR; attribution: www.manythings.org/anki and tatoeba.org",
}
"""The licence of the texts of each domain, as far as its owners state one."""
TEXTS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""Split and domain of each aligned text and, if it never changes, the SHA-256 of its lines."""
Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Part:
    """A text, or the part of it that belongs to one split."""

    name: str  # name of its files
    split: str
    domain: str  # a key of :data:`LICENCES`
    pairs: Pairs  # sources and targets

    @property
    def checksum(self) -> str:
        """The SHA-256 checksum of the lines, English before German."""
        digest = hashlib.sha256()
        for side in (0, 1):
            for pair in self.pairs:
                digest.update(f"{pair[side]}\n".encode())
        return digest.hexdigest()


def lines(folder: Path, name: str, language: str) -> list[str]:
    """Read the lines of ``NAME[.raw].LANGUAGE[.gz]`` below a folder; none if it is missing."""
    for file in (f"{name}.{language}", f"{name}.raw.{language}"):
        for path in sorted([*folder.rglob(file), *folder.rglob(f"{file}.gz")]):
            return [line for _, line in reading.lines(path)]
    return []


def aligned(folder: Path, name: str) -> Part | None:
    """Read the two files of the text ``name`` in :data:`TEXTS`; return None if neither exists.

    Raise DataError if their numbers of lines differ (a missing file has none), or if the text has
    another checksum than it should have.
    """
    sides = [lines(folder, name, language) for language in LANGUAGES]
    if not any(sides):
        return None
    lengths = [*map(len, sides)]
    if lengths[0] != lengths[1]:
        raise DataError(
            f"`{name}` in `{folder}` has {lengths[0]} English and {lengths[1]} German lines; it "
            "must have the same number of both."
        )
    text = TEXTS[name]
    part = Part(name, text["split"], text["domain"], list(zip(*sides, strict=True)))
    if part.checksum != text.get("sha256", part.checksum):
        raise DataError(
            f"`{name}` in `{folder}` is not the text that this recipe knows: its SHA-256 is "
            f"{part.checksum}. Download it again."
        )
    return part


def help_parts(folder: Path) -> Iterator[Part]:
    """Yield the training part and the test part of LibreOffice's help, which share no page."""
    with tempfile.TemporaryDirectory() as unpacked:
        for package in sorted(folder.rglob("libreoffice-help-*.deb")):
            if shutil.which("dpkg-deb") is None:
                raise ConfigError(
                    f"`{package}`: install dpkg-deb to unpack it, or give its folder instead."
                )
            subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True)
        for root in (Path(unpacked), folder):
            sides = [next(root.rglob(f"help/{name}/text"), None) for name in ("en-US", "de")]
            if all(sides):
                break
        else:
            return
        apart: tuple[Pairs, Pairs] = ([], [])
        paths = tuple(side for side in sides if side is not None)
        segments = help_pages(paths, *LANGUAGES)
        for source, target, page in accepted(segments, Rules(), Counter()):
            digest = hashlib.sha256(page.encode()).digest()
            apart[digest[0] % HELD_OUT_PAGES == 0].append((source, target))
    yield Part("help", "train", "help", apart[0])
    yield Part("test_help", "test_help", "help", apart[1])


def parts(folder: Path) -> Iterator[Part]:
    """Read all texts in the folder and its subfolders."""
    yield from filter(None, (aligned(folder, name) for name in TEXTS))
    yield from help_parts(folder)
    for archive in sorted(folder.rglob("deu-eng.zip"))[-1:]:
        rows = reading.cells(reading.lines(archive, "deu.txt"), archive, (1, 2))
        yield Part("tatoeba", "train", "phrases", list(rows))


def splits(texts: Iterable[Part]) -> dict[str, list[Part]]:
    """Return the texts of each split: ``train``, ``valid``, ``test`` and further test sets."""
    result: dict[str, list[Part]] = {split: [] for split in SPLITS}
    for part in texts:
        if part.name == HALVED:
            half = len(part.pairs) // 2
            rest = replace(part, name=f"{HALVED}-train", pairs=part.pairs[half:])
            result["train"].append(rest)
            part = replace(part, name=f"{HALVED}-valid", pairs=part.pairs[:half])
        result.setdefault(part.split, []).append(part)
    for split in SPLITS:
        if not result[split]:
            raise DataError(
                f"the folder has no text for `{split}`; it must have WMT's news test sets of 2013 "
                "and of 2014 to 2018, such as newstest2013.en and newstest2013.de."
            )
    return result


def without_held_out(train: Sequence[Part], held_out: Sequence[Part]) -> list[Part]:
    """Return the training parts without pairs whose source or target is in a held-out pair."""
    pairs = [(plain(source), plain(target)) for part in held_out for source, target in part.pairs]
    sources, targets = ({pair[side] for pair in pairs} for side in (0, 1))

    def is_kept(pair: tuple[str, str]) -> bool:
        return plain(pair[0]) not in sources and plain(pair[1]) not in targets

    return [replace(part, pairs=[*filter(is_kept, part.pairs)]) for part in train]


def without_trained(part: Part, train: Sequence[Part]) -> Part:
    """Return a test part without the pairs that have a near-duplicate in the training text."""
    overlap: set[int] = set()
    for side in (0, 1):
        training = (pair[side] for other in train for pair in other.pairs)
        matches = find([pair[side] for pair in part.pairs], training)
        overlap |= {match.sentence for match in matches}
    pairs = [pair for number, pair in enumerate(part.pairs) if number not in overlap]
    return replace(part, pairs=pairs)


def prepare(folder: Path, out: Path, merges: int) -> str:
    """Write the corpus of the texts in ``folder``, with ``merges`` BPE merges; return a summary."""
    sorted_parts = splits(parts(folder))
    sizes = {part.name: len(part.pairs) for texts in sorted_parts.values() for part in texts}
    held_out = [part for split, texts in sorted_parts.items() if split != "train" for part in texts]
    train = without_held_out(sorted_parts["train"], held_out)
    sorted_parts["train"] = [part for part in train if part.pairs]
    # Help pages repeat sentences with another menu's name. Other test sets stay as published.
    for part in sorted_parts.get("test_help", ()):
        rest = without_trained(part, train)
        sorted_parts["test_help"] = [rest] if rest.pairs else []
    record, texts = [], dict[str, Pairs]()
    sources: dict[str, tuple[Source, ...]] = {}
    for split, members in sorted_parts.items():
        more = split not in SPLITS
        sources[split] = tuple(
            Source(split if more else part.name, f"{part.name}.{{language}}") for part in members
        )
        for part in members:
            texts[part.name] = [(plain(source), plain(target)) for source, target in part.pairs]
            record.append(
                {
                    **{"name": part.name, "split": split, "pairs": len(part.pairs)},
                    **{"domain": part.domain, "licence": LICENCES[part.domain]},
                    "sha256": part.checksum,
                    "left out: in another split": sizes[part.name] - len(part.pairs),
                }
            )
    described = json.dumps(record, indent=1)
    written = out / "sources.json"
    if written.exists() and written.read_text(encoding="utf-8").strip() != described:
        raise DataError(f"`{out}` has a corpus of other texts; delete it or choose another folder.")
    write_pairs(out / "sources", texts, LANGUAGES)
    write_all(out, {written.name: [described]})
    corpus = Corpus(
        *LANGUAGES,
        **{split: sources.pop(split) for split in SPLITS},  # type: ignore
        more_tests=tuple(source for more in sources.values() for source in more),
        normalize=True,
        rules=("length=1:100", "ratio=4", "token=1000"),
        merges=merges,
        dictionary=("--joined-dictionary",),
    )
    work = Preparation("real_en_de", corpus, out, out / "sources", None, workers=2)
    return summary(work.run(), work.ready)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--from", dest="folder", type=Path, required=True, help="the texts' folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--bpe", type=int, default=10_000, help="joint merges (%(default)s)")
    args = parser.parse_args()
    try:
        if not args.folder.is_dir():
            raise ConfigError(f"`--from {args.folder}` is not a folder.")
        print(prepare(args.folder, args.out, args.bpe))
    except (OSError, ValueError, RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"real_text: error: {error}")


if __name__ == "__main__":
    main()
