#!/usr/bin/env python
"""Check sentences and their classes, and copy them into a run's folder.

    python recipes/linformer/classify_data.py --data DIR --out text
    python recipes/linformer/classify_data.py --data DIR --marks es --out text

DIR holds ``train``, ``valid`` and ``test``, each as ``.text`` and ``.label``: line n of ``.label``
is the class of the sentence in line n of ``.text``. With ``--marks es`` DIR holds ``train.es`` and
so on, one side of a translation corpus, and the class of a sentence is the mark at its end. Spanish
often has the same order of words in questions and statements, so the task is not trivial.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from fairseq_ext.checkpoints.dictionaries import SPECIAL
from fairseq_ext.corpora import SPLITS
from fairseq_ext.text.checks import check_text
from fairseq_ext.text.reading import lines
from fairseq_ext.utils.errors import DataError, FairseqExtError
from fairseq_ext.utils.files import write_all

MARKS = {".": "statement", "?": "question", "!": "exclamation"}


def read_labels(path: Path) -> list[str]:
    """Read the labels in a file, one per line.

    Raise DataError if a label has several words or is a special symbol of fairseq.
    """
    labels = [line.strip() for _, line in lines(path)]
    for number, label in enumerate(labels, 1):
        if len(label.split()) > 1:
            raise DataError(
                f"{path}, line {number}: the label `{label[:60]}` must be one word; replace "
                "its spaces with underscores, in every file."
            )
        if label in SPECIAL:
            raise DataError(
                f"{path}, line {number}: the label must not be `{label}`, a special symbol of "
                "fairseq. Give it another name, in every file."
            )
    return labels


def read_corpus(folder: Path) -> dict[str, list[str]]:
    """Read and check a corpus; return its lines by the names of the files (``train.text`` …)."""
    corpus: dict[str, list[str]] = {}
    for split in SPLITS:
        text, label = folder / f"{split}.text", folder / f"{split}.label"
        sizes = check_text(text), check_text(label)
        if sizes[0] != sizes[1]:
            raise DataError(
                f"{text} has {sizes[0]:,} lines but {label} has {sizes[1]:,}. Line n of one must "
                "be the class of line n of the other."
            )
        corpus |= {text.name: [line for _, line in lines(text)], label.name: read_labels(label)}
    require_known(folder, corpus)
    return corpus


def read_marks(folder: Path, language: str) -> dict[str, list[str]]:
    """Make a corpus (see :func:`read_corpus`) of sentences whose end marks are the labels.

    The marks are removed. Lines with several sentences or without an end mark, and repeated
    sentences, are left out.
    """
    sentences: set[str] = set()
    corpus: dict[str, list[str]] = {}
    for split in SPLITS:
        path = folder / f"{split}.{language}"
        if not path.is_file():
            raise DataError(f"`{path}` must be a file with sentences in `{language}`, but is not.")
        check_text(path)
        kinds: dict[str, str] = {}
        for _, line in lines(path):
            text, mark = line.strip()[:-1].strip(" ¿¡"), line.strip()[-1]
            if mark in MARKS and text and not set(text) & set(".?!¿¡") and text not in sentences:
                kinds.setdefault(text, MARKS[mark])
        if not kinds:
            raise DataError(f"`{path}` must have sentences that end in . ? or !, but has none.")
        sentences.update(kinds)
        corpus |= {f"{split}.text": [*kinds], f"{split}.label": [*kinds.values()]}
    require_known(folder, corpus)
    return corpus


def require_known(folder: Path, corpus: dict[str, list[str]]) -> None:
    """Refuse a corpus with labels that ``train`` lacks."""
    labels = set(corpus["train.label"])
    for split in SPLITS[1:]:
        for number, label in enumerate(corpus[f"{split}.label"], 1):
            if label not in labels:
                listed = ", ".join(sorted(labels)[:10]) + (" …" if len(labels) > 10 else "")
                raise DataError(
                    f"{folder / split}.label, line {number}: the label `{label}` does not occur in "
                    f"train.label, which has {listed}. Correct it, or move the sentence to train."
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the files")
    parser.add_argument("--marks", metavar="LANG", help="use the final marks as classes")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    try:
        if args.marks is not None:
            corpus = read_marks(args.data, args.marks)
        else:
            corpus = read_corpus(args.data)
        write_all(args.out, corpus)
    except (FairseqExtError, OSError) as error:
        sys.exit(f"classify_data: error: {error}")
    counts = Counter(corpus["train.label"]).most_common(10)
    print(", ".join(f"{split} {len(corpus[f'{split}.text']):,} lines" for split in SPLITS))
    print("classes of train:", ", ".join(f"{label} {count:,}" for label, count in counts))


if __name__ == "__main__":
    main()
