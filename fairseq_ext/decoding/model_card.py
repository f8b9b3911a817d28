"""The model card of a bundle, a ``README.md`` as model hubs read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_ext.evaluation.score import Score

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


@dataclass(frozen=True)
class Card:
    """What only its maker can say of a model.

    Attributes:
        about: the model and its data.
        licence: its name.
        scores: on a test set.
    """

    about: str = ""
    licence: str = "unknown"
    scores: Sequence[Score] = ()

    def render(
        self,
        *,
        src: str,
        tgt: str,
        architecture: str,
        parameters: int,
        numbers: str,
        updates: int | None,
        text: str,
    ) -> str:
        """The card, in Markdown.

        Args:
            src, tgt: languages.
            architecture: its name in fairseq.
            parameters: how many.
            numbers: of the weights.
            updates: of the training, or None.
            text: the steps between text and tokens.
        """
        known = {name.lower() for name in ("BLEU", "chrF") if name in self._names()}
        return _CARD.format(
            src=src,
            tgt=tgt,
            licence=self.licence,
            metrics="".join(["metrics:\n", *(f"- {one}\n" for one in sorted(known))] * bool(known)),
            architecture=architecture,
            about=self.about,
            parameters=parameters,
            numbers=numbers,
            updates="an unknown number of" if updates is None else f"{updates:,}",
            text=text,
            table=self._table(),
        )

    def _names(self) -> set[str]:
        return {one.name for one in self.scores}

    def _table(self) -> str:
        """The scores, a row each."""
        if not self.scores:
            return ""
        from fairseq_ext.evaluation.score import shown

        cells = [
            (one.name, shown(one.name, one.value), one.detail, f"`{one.signature}`")
            for one in self.scores
        ]
        rows = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in cells]
        return "\n".join(
            [
                "",
                "| metric | score | | signature |",
                "|---|---|---|---|",
                *(f"| {row} |" for row in rows),
                "",
            ]
        )
