"""Sentences in some ninety languages, with the tokens and the text that Moses makes of them."""

from pathlib import Path
from typing import NamedTuple


class Sentence(NamedTuple):
    """A row of ``languages.tsv``; Moses' columns are empty if it splits marks from letters."""

    language: str
    text: str
    tokens: str
    detokenized: str


def _rows() -> list[Sentence]:
    lines = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    return [Sentence(*row.split("\t")) for row in rows[1:]]


SENTENCES = _rows()
