"""The page of ``fairseq-ext demo``, on which several models translate a sentence side by side.

The page loads nothing from other machines, sends nothing to them, and uses the reader's own fonts.
"""

import asyncio
import base64
import html
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fairseq_ext.demo.systems import Answer, heat_map
from fairseq_ext.serving.origins import POLICY, OriginFilter, names_of
from fairseq_ext.serving.requests import CLOSE, GONE, Refusal, parse_fields, read_body
from fairseq_ext.serving.settings import Limits
from fairseq_ext.utils.errors import DataError

LIMITS = Limits(max_body=1 << 16)  # sentences are shorter
VISITORS = 100  # most requests at a time; uvicorn answers others with 503
Translate = Callable[[str, Sequence[str]], Sequence[Answer]]


def application(
    systems: Mapping[str, str],
    translate: Translate,
    max_words: int,
    examples: Sequence[str],
    host: str,
) -> ASGIApp:
    """Build the web application that shows the page and answers its requests.

    ``systems`` has descriptions by name. ``translate`` takes a sentence and the names of the chosen
    systems. The page states ``max_words``, the largest number of words in a sentence, and offers
    ``examples`` of sentences. Requests from pages of sites other than ``host`` are refused.
    """
    page = _page(systems, max_words, examples)
    thread = ThreadPoolExecutor(1, "translate")  # the engine's memory belongs to one thread
    turn = asyncio.Lock()  # so that nothing is translated for readers who leave while they wait

    def answered(sentence: str, names: list[str]) -> list[dict[str, str] | None]:
        if not names:
            raise DataError("Choose a system first.")
        answers = {answer.name: answer for answer in translate(sentence, names)}
        return [_shown(answers[name]) if name in answers else None for name in systems]

    async def show(_: Request) -> Response:
        return HTMLResponse(page, headers=POLICY)

    async def answer(request: Request) -> Response:
        fields = await parse_fields(request, await read_body(request, LIMITS))
        sentence, names = fields.get("sentence"), fields.get("systems")
        if not isinstance(sentence, str) or not isinstance(names, list):
            fault = "The request must have a text `sentence` and a list of names `systems`."
            raise Refusal(400, fault)
        try:
            async with turn:
                if await request.is_disconnected():
                    raise Refusal(GONE, "The client has gone.")
                loop = asyncio.get_running_loop()
                return JSONResponse(await loop.run_in_executor(thread, answered, sentence, names))
        except DataError as error:
            raise Refusal(400, str(error)) from None
        except asyncio.CancelledError:  # uvicorn cancels requests after the grace period
            text = "The server stopped before the answer was ready."
            raise Refusal(503, text, CLOSE) from None

    app = Starlette(
        routes=[Route("/", show), Route("/translate", answer, methods=["POST"])],
        exception_handlers=dict.fromkeys((Refusal, HTTPException, Exception), _refused),
    )
    return OriginFilter(app, names_of(host), ())


def _page(systems: Mapping[str, str], max_words: int, examples: Sequence[str]) -> str:
    """Return the page's HTML: ``page.html`` filled with style, script, systems and examples."""
    labels = [html.escape(f"{name} ({about})") for name, about in systems.items()]
    boxes = (
        f'<label><input type="checkbox" value="{html.escape(name)}" checked> {label}</label>'
        for name, label in zip(systems, labels, strict=True)
    )
    columns = (
        f'<div id="system-{place}" hidden><label>{label}<small></small>'
        '<textarea rows="2" readonly></textarea></label><div class="picture"></div></div>'
        for place, label in enumerate(labels)
    )
    buttons = [f'<button type="button">{html.escape(text)}</button>' for text in examples]
    return Template(_beside("page.html")).substitute(
        style=_beside("page.css"),
        script=_beside("page.js"),
        max_words=f"{max_words:,}",
        examples="".join(["Try ", *buttons] if buttons else []),
        systems="".join(boxes),
        columns="".join(columns),
    )


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _shown(answer: Answer) -> dict[str, str]:
    """Return an answer's text and remark, and its attention matrix as PNG in base64 (or "")."""
    picture = b"" if answer.attention is None else heat_map(answer.attention)
    encoded = base64.b64encode(picture).decode()
    return {"text": answer.text, "remark": answer.remark, "picture": encoded}


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return JSONResponse({"error": error.text}, error.status, {**POLICY, **error.headers})
    if isinstance(error, HTTPException):
        return JSONResponse({"error": "Nothing is here."}, error.status_code, POLICY)
    return JSONResponse({"error": "The server failed; its terminal says why."}, 500, POLICY)


def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Serve the page on an open socket until the process is interrupted."""
    settings: dict[str, Any] = {"log_level": "warning", "access_log": False, "ws": "none"}
    settings["timeout_graceful_shutdown"] = 1  # seconds that a translation may still take
    with listener:
        config = uvicorn.Config(app, limit_concurrency=VISITORS, **settings)
        uvicorn.Server(config).run([listener])
