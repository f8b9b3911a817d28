"""Write the table of docs/published.md: how fairseq-ext runs each model that fairseq published.

    python docs/make_published.py

`tests/models/test_published.py` fails if the page does not have the table of :func:`table`.
"""

from __future__ import annotations

from pathlib import Path

from fairseq_ext.checkpoints.published import hub_models

PAGE = Path(__file__).resolve().parent / "published.md"
BEGIN, END = "<!-- table: docs/make_published.py -->", "<!-- end of the table -->"
TEXT = {"moses": "Moses, ", "space": ""}
SUBWORDS = {"subword_nmt": "subword-nmt", "fastbpe": "fastBPE", "sentencepiece": "SentencePiece"}


def table() -> str:
    """Return a Markdown table with a row for each translation model that fairseq published."""
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
    """Return docs/published.md with its table replaced by the one of :func:`table`."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
