"""Read the fields of a request, which is JSON or a form and may be hostile, and check them.

A request that cannot be answered raises a :class:`Refusal` with an HTTP status. Other modules of
this folder raise it, too; ``docs/howto/serve.md`` lists the statuses.
"""

import asyncio
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from fairseq_ext.serving.settings import Limits
from fairseq_ext.utils.errors import DataError, printable
from fairseq_ext.utils.json_files import parse_json

AUTO = "auto"
FORMATS = (TEXT, HTML) = ("text", "html")
JSON = "application/json"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
FIELDS = 1000  # most fields of a form
# Closing a connection with unread bytes resets it, and many clients then never see the answer. So
# this many bytes beyond the limit are read and dropped before the answer.
DRAINED = 1 << 24
CLOSE = {"Connection": "close"}
GONE = 499  # status, as in nginx, for a client that has closed the connection before its answer


class Refusal(Exception):
    """An error that the server answers with an HTTP status, a message and headers."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers or {}


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read a body; refuse it if it is too large (413), too slow (408) or cut off (499)."""
    try:
        return await asyncio.wait_for(_read(request, limits.max_body), limits.timeout)
    except (TimeoutError, asyncio.TimeoutError):  # in Python 3.10 these are two classes
        text = f"The request did not arrive within {limits.timeout:g} seconds."
        raise Refusal(408, text, CLOSE) from None
    except ClientDisconnect:
        raise Refusal(GONE, "The client has gone.") from None


async def _read(request: Request, max_bytes: int) -> bytes:
    refusal = Refusal(413, f"A request must have at most {max_bytes:,} bytes.", CLOSE)
    declared = int(request.headers.get("content-length", "0"))  # h11 accepts only numbers
    if declared > max_bytes and "expect" in request.headers:
        raise refusal  # the client has asked first, and not sent the body yet
    body, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if max(size, declared) <= max_bytes:
            body += part
        elif size > max_bytes + DRAINED:
            break
    if max(size, declared) > max_bytes:
        raise refusal
    return bytes(body)


async def parse_fields(request: Request, body: bytes) -> dict[str, Any]:
    """Parse the fields of a body; several ``q`` in a form become a list.

    Refuse the request if the body is damaged (400) or its content type is not supported (415).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == JSON:
            fields = parse_json(body.decode("utf-8"), "The request")
            if not isinstance(fields, dict):
                raise DataError("The request must be a JSON object.")
            return fields
        if kind == FORMS[0]:  # percent-encoded, or raw UTF-8, as curl sends it
            text = body.decode("utf-8")
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS)
        elif kind == FORMS[1]:
            pairs = await _parse_multipart(request, body)
        else:
            raise Refusal(415, f"Content-Type must be {JSON}, {FORMS[0]} or {FORMS[1]}.")
    except UnicodeDecodeError:
        raise Refusal(400, "The request is not UTF-8.") from None
    except DataError as error:
        raise Refusal(400, str(error)) from None
    except ValueError as error:
        raise Refusal(400, f"The form cannot be read: {error}") from None
    texts = [text for name, text in pairs if name == "q"]
    return dict(pairs) | ({"q": texts} if len(texts) > 1 else {})


async def _parse_multipart(request: Request, body: bytes) -> list[tuple[str, Any]]:
    async def replayed() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    copy = Request(request.scope, replayed)
    _, parameters = parse_options_header(request.headers["content-type"])
    if parameters.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise Refusal(415, "The form must be in UTF-8.")  # some codecs take quadratic time
    try:
        form = await copy.form(max_files=0, max_fields=FIELDS, max_part_size=len(body) + 1)
    except HTTPException as error:
        raise ValueError(printable(error.detail)) from None
    return form.multi_items()


@dataclass(frozen=True)
class Query:
    """A request for translations."""

    texts: list[str]
    is_single: bool  # whether `q` was a text, not a list of texts
    source: str
    target: str
    format: str
    alternatives: int


def parse_query(fields: dict[str, Any]) -> Query:
    """Make a query of a request's fields; refuse missing and wrong fields (400)."""
    # LibreTranslate's clients send null or an empty text for fields that the server is to choose.
    fields = {
        name: value
        for name, value in fields.items()
        if value is not None and (value != "" or name == "q")
    }
    for name in ("q", "source", "target"):
        if name not in fields:
            raise Refusal(400, f"Invalid request: missing {name} parameter")
    q, source, target = fields["q"], fields["source"], fields["target"]
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(text, str) for text in (*texts, source, target)):
        fault = "`q` must be a text or a list of texts, and `source` and `target` a language code."
        raise Refusal(400, fault)
    form = fields.get("format", TEXT)
    if form not in FORMATS:
        raise Refusal(400, f"`format` must be {' or '.join(f'`{name}`' for name in FORMATS)}.")
    alternatives = str(fields.get("alternatives", 0))
    if not re.fullmatch("[0-9]{1,4}", alternatives):
        raise Refusal(400, "`alternatives` must be a whole number.")
    return Query(texts, isinstance(q, str), source, target, form, int(alternatives))


def check_key(fields: dict[str, Any], keys: Sequence[str]) -> None:
    """If the server has API keys, refuse a request without one (401) or with a wrong one (403)."""
    if not keys:
        return
    key = fields.get("api_key")
    if not key:
        raise Refusal(401, "An API key is needed: `api_key` is missing.")
    sent = str(key).encode(errors="surrogatepass")
    allowed = [key.encode(errors="surrogateescape") for key in keys]  # keys may not be UTF-8
    if not any([hmac.compare_digest(sent, key) for key in allowed]):  # in equal time for any key
        raise Refusal(403, "Invalid API key")


def check_texts(texts: Sequence[str], limits: Limits) -> None:
    """Refuse (status 413) too many texts, or too many characters or lines in all texts."""
    require_few("texts", len(texts), limits.max_sentences)
    require_few("characters", sum(map(len, texts)), limits.max_chars)
    require_few("lines", sum(text.count("\n") + 1 for text in texts), limits.max_sentences)


def require_few(unit: str, count: int, maximum: int) -> None:
    """Refuse a request (413) with more than ``maximum`` of a ``unit``, such as ``lines``."""
    if count > maximum:
        fault = f"The request has {count:,} {unit}, but at most {maximum:,} are translated."
        raise Refusal(413, fault)
