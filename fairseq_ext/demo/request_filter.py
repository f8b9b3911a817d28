"""Make the demo's server answer only requests of its own page, under its own name."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairseq_ext.utils.address import host_in, names_of
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.json_files import parse_json

# All that a browser asks for. gradio answers much else: uploads, files, descriptions of itself.
JOIN = "/gradio_api/queue/join"
PATHS = {"/", "/theme.css", "/favicon.ico", "/gradio_api/queue/data", "/gradio_api/startup-events"}
FOLDERS = ("/assets/", "/static/", "/gradio_api/heartbeat/")
FIELDS = ("data", "session_hash", "fn_index", "trigger_id")
MOST_BYTES = 1 << 16  # of a request; sentences are shorter
# The page needs only its own scripts, styles and pictures; a browser must not load any others.
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'; "
    "form-action 'self'"
)


class Refusal(Exception):
    """An answer with a status of 4xx and a line of text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = PlainTextResponse(f"{text}\n", status)


class Gate:
    """ASGI middleware that lets only the page's own requests through.

    Another name in ``Host`` gets 403, because a foreign page whose name was pointed at this machine
    would send one (DNS rebinding); so does another ``Origin``. Starlette's own middleware answers
    400, and does not look at ``Origin``.

    Args:
        app: the page.
        host: the address or name that it is served on.
        functions: numbers of the page's functions in gradio.
    """

    def __init__(self, app: ASGIApp, host: str, functions: Collection[int]) -> None:
        self.app, self.functions = app, functions
        self.names = names_of(host)

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
            self._check_names(scope)
            receive = await self._checked(scope, receive)
        except Refusal as refusal:
            await refusal.response(scope, receive, send_with_policy)
        except ClientDisconnect:
            return
        else:
            await self.app(scope, receive, send_with_policy)

    def _check_names(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or host_in(hosts[0]) not in self._served(scope):
            raise Refusal(403, "This page is not served under that name.")
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
            raise Refusal(403, "This page does not answer other pages.")

    def _served(self, scope: Scope) -> set[str]:
        """Return the names of this connection: its address here, and the server's names."""
        address = ipaddress.ip_address(scope["server"][0])
        # A server on `::` also takes IPv4, at an address such as ::ffff:127.0.0.1.
        address = getattr(address, "ipv4_mapped", None) or address
        loopback_names = {"localhost"} if address.is_loopback else set()
        return {str(address), *self.names, *loopback_names}

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Return the body of a request in the form that the page should receive."""
        method, path = scope["method"], scope["path"]
        if method == "POST" and path == JOIN:
            body = self._request(await _body(Request(scope, receive)))
            return _replay(body, receive)
        if method in ("GET", "HEAD") and (path in PATHS or path.startswith(FOLDERS)):
            return receive
        raise Refusal(404, "Nothing is here.")

    def _request(self, body: bytes) -> bytes:
        """Reduce a request to a sentence and the chosen systems, in gradio's form."""
        try:
            request = parse_json(body.decode("utf-8"), "the request")
        except (UnicodeDecodeError, DataError):
            raise Refusal(400, "The request is not JSON.") from None
        if not (isinstance(request, dict) and self._is_of_the_page(request)):
            raise Refusal(422, "The request is not one of this page.")
        return json.dumps({name: request.get(name) for name in FIELDS}).encode()

    def _is_of_the_page(self, request: dict[str, Any]) -> bool:
        data, session, function, trigger = (request.get(name) for name in FIELDS)
        return (
            isinstance(data, list)
            and len(data) == 2
            and isinstance(data[0], str)
            and isinstance(data[1], list)
            and all(isinstance(name, str) for name in data[1])
            and isinstance(session, str)
            and type(function) is int
            and function in self.functions
            and (trigger is None or type(trigger) is int)
        )


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Refusal(413, f"A request has at most {MOST_BYTES:,} bytes.")
    return body


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel that first gives ``body``, and then whatever follows."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed
