"""Limit the size of requests, and answer those that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import flag, option


class Refusal(Exception):
    """An error that becomes an answer.

    Attributes:
        status: 4xx or 5xx.
        text: a line that says what is wrong.
        headers: of the answer.
    """

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers or {}


def _limit(default: float, text: str) -> Any:
    return option(default, f"{text} (%(default)s)", metavar="N")


@dataclass(frozen=True)
class Limits:
    """The most that a request may ask for."""

    max_chars: int = _limit(10_000, "characters in all texts of a request")
    max_sentences: int = _limit(100, "lines in all texts of a request, empty ones included")
    max_body: int = _limit(1_000_000, "bytes of a request")
    max_queue: int = _limit(
        1_000, "sentences waiting in one process; beyond this, the answer is 429"
    )
    timeout: float = _limit(60.0, "seconds to receive a request, and as many to answer it")

    def check(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: a number is out of range; the message names the first.
        """
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"`{flag(limit.name)}` must be above 0, but is {value} instead.")
        if self.max_queue < self.max_sentences:
            raise ConfigError(
                f"`--max-queue` must be at least `--max-sentences`, which is {self.max_sentences}, "
                f"but is {self.max_queue} instead."
            )

    def check_texts(self, texts: Sequence[str]) -> None:
        """Refuse texts whose total length is too large.

        Raises:
            Refusal: 413.
        """
        lines = sum(text.count("\n") + 1 for text in texts)
        chars = sum(map(len, texts))
        for count, maximum, unit in (
            (len(texts), self.max_sentences, "texts"),
            (chars, self.max_chars, "characters"),
            (lines, self.max_sentences, "lines"),
        ):
            if count > maximum:
                raise Refusal(
                    413,
                    f"The request has {count:,} {unit}, but at most {maximum:,} are translated.",
                )

    def check_sentences(self, count: int) -> None:
        """Refuse lines that have been split into too many sentences.

        Raises:
            Refusal: 413.
        """
        if count > self.max_sentences:
            raise Refusal(
                413,
                f"The request has {count:,} sentences, but at most {self.max_sentences:,} are "
                "translated.",
            )
