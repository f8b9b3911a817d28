"""Write the table of docs/published.md: what happens to each published translation model.

    python docs/make_published.py

`tests/models/test_published.py` compares the page with :func:`table`.
"""

from __future__ import annotations

from pathlib import Path

from fairseq_ext.checkpoints.published import hub_models

PAGE = Path(__file__).resolve().parent / "published.md"
BEGIN, END = "<!-- table: docs/make_published.py -->", "<!-- end of the table -->"
TEXT = {"moses": "Moses, ", "space": ""}
SUBWORDS = {"subword_nmt": "subword-nmt", "fastbpe": "fastBPE", "sentencepiece": "SentencePiece"}


def table() -> str:
    """The table of all translation models."""
    rows = ["| name | text | what happens |", "|---|---|---|"]
    for name, entry in hub_models().items():
        steps = "by its files"
        if "bpe" in entry:
            steps = f"{TEXT[entry['tokenizer']]}{SUBWORDS[entry['bpe']]}"
        what = "fairseq's generator" if name.startswith("conv.") else "the engine"
        if "flores101" in name:
            what = "the engine, with `--src` and `--tgt`"
        rows.append(f"| `{name}` | {steps} | translated by {what} |")
    return "\n".join(rows)


def page() -> str:
    """The page with the table of today."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
