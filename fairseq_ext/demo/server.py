"""Serve a page of gradio's, and only this page, without contacting any other machine."""

import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairseq_ext.serving.origins import OriginFilter
from fairseq_ext.serving.settings import Refusal
from fairseq_ext.utils.address import names_of

# All paths that a browser needs. gradio has many others: uploads, files, descriptions of itself.
JOIN = "/gradio_api/queue/join"
PATHS = {"/", "/theme.css", "/favicon.ico", "/gradio_api/queue/data", "/gradio_api/startup-events"}
FOLDERS = ("/assets/", "/static/", "/gradio_api/heartbeat/")
MOST_BYTES = 1 << 16  # most bytes of a request; sentences are shorter
# The page needs only its own scripts, styles and pictures; a browser must not load any others.
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'; "
    "form-action 'self'"
)
FONTS = ("ui-sans-serif", "system-ui", "sans-serif")
VISITORS = 100
"""Most open pages, of some 90 KB each, and most events that gradio remembers. Its default is 10,000
of both."""


class JoinRequest(BaseModel):
    """A request of the page, in gradio's form: the sentence and the chosen systems."""

    model_config = ConfigDict(strict=True)

    data: tuple[str, list[str]]
    session_hash: str
    fn_index: int
    trigger_id: int | None = None


class Gate:
    """ASGI middleware that accepts only the page's requests, which call ``functions`` by number."""

    def __init__(self, app: ASGIApp, functions: Collection[int]) -> None:
        self.app, self.functions = app, functions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Content-Security-Policy"] = POLICY
            await send(message)

        try:
            receive = await self._checked(scope, receive)
        except Refusal as refusal:
            response = PlainTextResponse(f"{refusal.text}\n", refusal.status)
            await response(scope, receive, send_with_policy)
        except ClientDisconnect:
            return
        else:
            await self.app(scope, receive, send_with_policy)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Refuse all but the page's requests; return a function that gives the checked body."""
        method, path = scope["method"], scope["path"]
        if method in ("GET", "HEAD") and (path in PATHS or path.startswith(FOLDERS)):
            return receive
        if method != "POST" or path != JOIN:
            raise Refusal(404, "Nothing is here.")
        body = b""
        async for part in Request(scope, receive).stream():
            body += part
            if len(body) > MOST_BYTES:
                raise Refusal(413, f"A request has at most {MOST_BYTES:,} bytes.")
        try:
            request = JoinRequest.model_validate_json(body)
        except ValidationError as error:
            if error.errors()[0]["type"] == "json_invalid":
                raise Refusal(400, "The request is not JSON.") from None
            raise Refusal(422, "The request is not one of this page.") from None
        if request.fn_index not in self.functions:
            raise Refusal(422, "The request is not one of this page.")
        checked = request.model_dump_json().encode()
        waiting: list[Message] = [{"type": "http.request", "body": checked, "more_body": False}]

        async def replayed() -> Message:
            return waiting.pop() if waiting else await receive()

        return replayed


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def application(blocks: gr.Blocks, host: str) -> ASGIApp:
    """Make a web application of the page, without gradio's uploads, statistics and description.

    ``host`` is the address or name that it is served on.
    """
    blocks.state_session_capacity = VISITORS
    blocks._queue.ANALYTICS_MAX_EVENTS = VISITORS
    # In the colours of the plots, and without fonts to download.
    theme = gr.themes.Default(primary_hue="blue", font=FONTS, font_mono=("ui-monospace",))
    outer = gr.mount_gradio_app(
        FastAPI(openapi_url=None),
        blocks,
        path="/",
        app_kwargs={"openapi_url": None},
        theme=theme,
        js=_beside("page.js"),
        css=_beside("page.css"),
        footer_links=[],
        run_history=False,
        max_file_size=0,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        show_error=False,
        enable_monitoring=False,
    )
    functions = {number for number, function in blocks.fns.items() if function.fn}
    return OriginFilter(Gate(outer, functions), names_of(host), ())


def serve(blocks: gr.Blocks, listener: socket.socket, host: str) -> None:
    """Serve the page on an open socket until the process is interrupted."""
    settings: dict[str, Any] = {"log_level": "warning", "access_log": False}
    settings["timeout_graceful_shutdown"] = 1  # seconds, because an open page holds a connection
    with listener:
        uvicorn.Server(uvicorn.Config(application(blocks, host), **settings)).run([listener])
