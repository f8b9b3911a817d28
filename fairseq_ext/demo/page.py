"""The page of ``fairseq-ext demo``, on which several models translate a sentence side by side.

It is built with gradio, and served without gradio's uploads, statistics and description of itself.
The page loads nothing from other machines, uses the reader's own fonts, and reports nothing.
"""

import base64
import html
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
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

from fairseq_ext.demo.systems import Answer, heat_map
from fairseq_ext.serving.origins import OriginFilter
from fairseq_ext.serving.settings import Refusal
from fairseq_ext.utils.address import names_of
from fairseq_ext.utils.errors import DataError

TITLE = "Translations side by side"
KEYS = "Enter translates, Shift+Enter breaks the line"
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
"""The largest number of open pages (some 90 KB each), and of events that gradio remembers. gradio's
default is 10,000 for both."""

Translate = Callable[[str, Sequence[str]], Sequence[Answer]]


def build(
    systems: Mapping[str, str], translate: Translate, max_words: int, examples: Sequence[str] = ()
) -> gr.Blocks:
    """Build the demo's page; ``systems`` has a description of each system by name.

    ``translate`` takes a sentence and the names of the chosen systems. ``examples`` are sentences
    that the page offers to translate.
    """
    names = list(systems)
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        gr.Markdown(f"# {TITLE}")
        sentence = gr.Textbox(
            label="Sentence",
            info=f"{KEYS}; at most {max_words:,} words",
            lines=2,
            autofocus=True,
            elem_id="sentence",
        )
        if examples:
            buttons = (f'<button type="button">{html.escape(text)}</button>' for text in examples)
            gr.HTML(f'<div id="examples">Try {" ".join(buttons)}</div>')
        with gr.Row(equal_height=True):
            choices = [(f"{name} ({about})", name) for name, about in systems.items()]
            selection = gr.CheckboxGroup(
                choices, value=names, label="Systems", scale=4, min_width=280, elem_id="systems"
            )
            button = gr.Button(
                "Translate", variant="primary", scale=1, min_width=200, elem_id="translate"
            )
        gr.HTML('<div id="status" role="status"></div>')
        message = gr.HTML(visible=False, elem_id="message")
        with gr.Row(elem_id="results"):
            columns = [_add_column(place, *system) for place, system in enumerate(systems.items())]

        def show(text: str, selected: Sequence[str]) -> list[Any]:
            return _shown(text, selected, names, translate)

        done = button.click(
            show,
            inputs=[sentence, selection],
            outputs=[message, *(part for column in columns for part in column)],
            js="(...inputs) => { window.demo.begin(); return inputs; }",
            show_progress="hidden",
            api_visibility="private",
        )
        done.then(None, js="() => window.demo.end()", api_visibility="private")
    return page


def _add_column(place: int, name: str, about: str) -> tuple[Any, Any, Any]:
    """Add a system's column, hidden until it has an answer; return column, text and picture."""
    with gr.Column(visible=False, min_width=300, elem_id=f"system-{place}") as column:
        text = gr.Textbox(label=f"{name} ({about})", lines=2, interactive=False)
        picture = gr.HTML()
    return column, text, picture


def _shown(
    text: str, names_chosen: Sequence[str], names: Sequence[str], translate: Translate
) -> list[Any]:
    """Return updates for the message, and for every system's column, text and picture."""
    try:
        if not names_chosen:
            raise DataError("Choose a system first.")
        answers = {answer.name: answer for answer in translate(text, names_chosen)}
    except DataError as error:
        hidden = [gr.update(visible=False), gr.skip(), gr.skip()]
        text = f'<strong role="alert">{html.escape(str(error))}</strong>'
        return [gr.update(value=text, visible=True), *hidden * len(names)]
    states = [gr.update(visible=False)]
    for name in names:
        if name not in answers:
            states += [gr.update(visible=False), gr.skip(), gr.skip()]
            continue
        answer, picture = answers[name], ""
        if answer.attention is not None:
            picture = _image(f"Attention of {name}", heat_map(answer.attention))
        translation = gr.update(value=answer.text, info=answer.remark)
        states += [gr.update(visible=True), translation, gr.update(value=picture)]
    return states


def _image(name: str, png: bytes) -> str:
    """Return an HTML image that contains the picture itself, so that no file is written."""
    data, name = base64.b64encode(png).decode(), html.escape(name)
    # On a phone the picture scrolls, because its labels could not be read at the phone's width.
    style, density = "max-width: max(100%, 34rem)", "1.5x"  # the density of plots.save_picture
    image = f'<img alt="{name}" style="{style}" srcset="data:image/png;base64,{data} {density}">'
    return f'<div style="overflow-x: auto">{image}</div>'


# ---- the server ----------------------------------------------------------------------------------


class JoinRequest(BaseModel):
    """A request of the page, in gradio's form: the sentence and the chosen systems."""

    model_config = ConfigDict(strict=True)

    data: tuple[str, list[str]]
    session_hash: str
    fn_index: int
    trigger_id: int | None = None


class Gate:
    """ASGI middleware that refuses all requests but those of the page.

    ``functions`` are the numbers of the gradio functions that the page may call.
    """

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
    """Make a web application of the page, without gradio's uploads, statistics and description."""
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
