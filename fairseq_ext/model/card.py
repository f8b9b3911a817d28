"""The model card of a bundle, a ``README.md`` in the form of model hubs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairseq_ext.evaluation.score import Score, shown

_CARD = """---
language:
- {src}
- {tgt}
license: {licence}
library_name: fairseq-ext
pipeline_tag: translation
{metrics}---

# {src} → {tgt}: {architecture}

{about}

- architecture: `{architecture}`, {parameters:,} parameters, stored in {numbers}
- training: {updates} updates
- text: {text}
{table}
It translates one sentence at a time, of text like that of its training.

```
fairseq-ext translate --path FOLDER --input text.{src}
```

```python
import fairseq_ext

fairseq_ext.load("FOLDER").translate("…").text
```
"""

_LICENCE = re.compile(r"\A---\n(?:.*\n)*?license: (.*)\n")
_ABOUT = re.compile(r"\n---\n+# [^\n]*\n\n(.*?)\n\n- architecture: ", re.DOTALL)
_MEASURED = "Measured with the weights in {numbers}."
_IN = re.compile(rf"^{re.escape(_MEASURED).replace(re.escape('{numbers}'), '([a-z0-9-]+)')}$", re.M)


@dataclass(frozen=True)
class Card:
    """The part of a model card that only the model's maker can write.

    Attributes:
        about: text about the model and its data.
        licence: name of the licence.
        scores: on a test set.
        measured: number format of the weights that have these scores; None for the stored one.
    """

    about: str = ""
    licence: str = "unknown"
    scores: Sequence[Score] = ()
    measured: str | None = None

    @classmethod
    def read(cls, text: str) -> Card:
        """Parse a card: all fields if we rendered it, else only the licence and the text."""
        licence, about, numbers = (pattern.search(text) for pattern in (_LICENCE, _ABOUT, _IN))
        return cls(
            about[1] if about else text.rpartition("\n---\n")[2].strip(),
            licence[1] if licence else cls.licence,
            list(_scores(text)) if about else (),
            numbers[1] if numbers else None,
        )

    def render(self, *, updates: int | None, **facts: str | int) -> str:
        """Render the card in Markdown.

        Args:
            updates: of the training, or None.
            facts: languages, architecture, parameters, numbers and text, for the template.
        """
        names = {score.name for score in self.scores}
        metrics = [f"- {name.lower()}\n" for name in ("BLEU", "chrF") if name in names]
        return _CARD.format(
            **facts,
            licence=self.licence,
            metrics="".join(["metrics:\n", *metrics] if metrics else []),
            about=self.about,
            updates="an unknown number of" if updates is None else f"{updates:,}",
            table=self._table(),
        )

    def _table(self) -> str:
        """Return the table of scores, with a row for each score."""
        if not self.scores:
            return ""
        cells = [
            (score.name, shown(score.name, score.value), score.detail, f"`{score.signature}`")
            for score in self.scores
        ]
        rows = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in cells]
        lines = ["", "| metric | score | | signature |", "|---|---|---|---|"]
        lines += [*(f"| {row} |" for row in rows), ""]
        if self.measured:
            lines += [_MEASURED.format(numbers=self.measured), ""]
        return "\n".join(lines)


def _scores(text: str) -> Iterator[Score]:
    """Yield the scores in a card's table, with the decimals shown."""
    for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        cells = [cell.replace("\\|", "|") for cell in re.split(r" (?<!\\)\| ", row)]
        if len(cells) == 4 and re.fullmatch(r"-?\d+(\.\d+)?", cells[1]):
            name, value, detail, signature = cells
            yield Score(name, float(value), signature.strip("`"), detail)
