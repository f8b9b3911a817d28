"""How large a request may be, and the reading of a body that may be hostile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields

from starlette.requests import ClientDisconnect, Request

from fairseq_ext.errors import ConfigError

# A connection that is closed with bytes of the client unread resets it, and many clients then never
# see the answer. So much of a body that is too large is thrown away before the answer says so.
DRAINED = 1 << 24
CLOSE = {"Connection": "close"}


class Refusal(Exception):
    """An answer that is an error.

    Attributes:
        status: of 4xx or 5xx.
        text: a line that says what is wrong.
        headers: of the answer.
    """

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers or {}


class Gone(Exception):
    """The client has closed the connection before there was an answer."""


@dataclass(frozen=True)
class Limits:
    """What a request may ask for; the names are those of the command's options.

    Attributes:
        max_chars: characters of a request's texts together.
        max_sentences: lines of a request's texts together, empty ones included.
        max_body: bytes.
        max_queue: sentences of all requests that wait.
        timeout: seconds for reading a request, and again for answering it.
    """

    max_chars: int = 10_000
    max_sentences: int = 100
    max_body: int = 1_000_000
    max_queue: int = 1_000
    timeout: float = 60.0

    def check(self) -> None:
        """Refuse numbers that cannot be.

        Raises:
            ConfigError: the first of them.
        """
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 < value < float("inf"):
                raise ConfigError(
                    f"`--{one.name.replace('_', '-')}` must be above 0, but is {value} instead."
                )
        if self.max_queue < self.max_sentences:
            raise ConfigError(
                f"`--max-queue` must be at least `--max-sentences`, which is {self.max_sentences}, "
                f"but is {self.max_queue} instead."
            )

    def check_texts(self, texts: Sequence[str]) -> None:
        """Refuse texts that are too long together.

        Raises:
            Refusal: 413.
        """
        lines = sum(text.count("\n") + 1 for text in texts)
        chars = sum(map(len, texts))
        for found, most, what in (
            (len(texts), self.max_sentences, "texts"),
            (chars, self.max_chars, "characters"),
            (lines, self.max_sentences, "lines"),
        ):
            if found > most:
                raise Refusal(
                    413, f"The request has {found:,} {what}, but at most {most:,} are translated."
                )

    async def body(self, request: Request) -> bytes:
        """A request's body.

        Raises:
            Refusal: 413, if it is too large, or 408, if it comes too slowly.
            Gone: it does not come whole.
        """
        try:
            return await asyncio.wait_for(self._read(request), self.timeout)
        except (TimeoutError, asyncio.TimeoutError):  # two classes in Python 3.10
            text = f"The request did not come whole within {self.timeout:g} seconds."
            raise Refusal(408, text, CLOSE) from None
        except ClientDisconnect:
            raise Gone from None

    async def _read(self, request: Request) -> bytes:
        refusal = Refusal(413, f"A request must have at most {self.max_body:,} bytes.", CLOSE)
        declared = int(request.headers.get("content-length", "0"))  # h11 lets numbers pass alone
        if declared > self.max_body and "expect" in request.headers:
            raise refusal  # the client asks first, and has sent nothing yet
        body, size = bytearray(), 0
        async for part in request.stream():
            size += len(part)
            if max(size, declared) <= self.max_body:
                body += part
            elif size > self.max_body + DRAINED:
                break
        if max(size, declared) > self.max_body:
            raise refusal
        return bytes(body)
