"""The model card of a bundle: a ``README.md`` such as model hubs expect."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_ext.evaluation import tables
from fairseq_ext.evaluation.score import Score, format_score

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
It translates one sentence at a time, and works best on text that resembles its training text.

```
fairseq-ext translate --path FOLDER --input text.{src}
```

```python
import fairseq_ext

fairseq_ext.load("FOLDER").translate("…").text
```
"""

_LICENCE = re.compile(r"\A---\n(?:.*\n)*?license: (.*)\n")
_BODY = re.compile(
    r"\n---\n+# [^\n]*\n\n(.*?)\n\n- architecture: `.*?\n- text: [^\n]*\n(.*?)\nIt translates ",
    re.DOTALL,
)


@dataclass(frozen=True)
class Card:
    """The part of a model card that only the model's maker can write."""

    about: str = ""  # text about the model and its data
    licence: str = "unknown"
    table: str = ""  # scores in Markdown

    @classmethod
    def read(cls, text: str) -> "Card":
        """Parse a model card.

        If :meth:`render` did not write the card, ``about`` is all text after the card's YAML.
        """
        licence, body = _LICENCE.search(text), _BODY.search(text)
        about = body[1] if body else text.rpartition("\n---\n")[2].strip()
        return cls(about, licence[1] if licence else cls.licence, body[2] if body else "")

    def render(self, *, updates: int | None, **facts: str | int) -> str:
        """Return the model card as Markdown.

        ``updates`` is the number of training updates, or None if it is unknown. ``facts`` are
        ``src`` and ``tgt`` (languages), ``architecture``, ``numbers`` (the format of the weights),
        ``parameters`` (their number) and ``text`` (a phrase about the text pipeline).
        """
        names = [name for name in ("BLEU", "chrF") if f"\n| {name} | " in self.table]
        metrics = "".join(f"- {name.lower()}\n" for name in names)
        return _CARD.format(
            **facts,
            licence=self.licence,
            metrics=f"metrics:\n{metrics}" if metrics else "",
            about=self.about,
            updates="an unknown number of" if updates is None else f"{updates:,}",
            table=self.table,
        )


def score_table(scores: Sequence[Score]) -> str:
    """Format scores as a Markdown table."""
    rows = [(s.name, format_score(s.name, s.value), s.detail, f"`{s.signature}`") for s in scores]
    return f"\n{tables.markdown([('metric', 'score', '', 'signature'), *rows])}\n"
