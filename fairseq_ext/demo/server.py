"""Serving a page of gradio's, to this machine alone and from this machine alone."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import gradio as gr
import uvicorn
from fastapi import FastAPI

from fairseq_ext.demo import page
from fairseq_ext.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import Request, Response

# The page needs its own scripts, styles and pictures; a browser asks nobody else for anything.
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'; "
    "form-action 'self'"
)


def listen(host: str, port: int) -> socket.socket:
    """A socket on which the page can be served.

    Whoever comes before the models are loaded waits.

    Args:
        host: name or address of this machine.
        port: 0 for any that is free.

    Raises:
        ConfigError: no such address, or the port is in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"`--host` and `--port` must be an address of this machine and a free port, but are "
            f"{host} and {port} instead ({error})."
        ) from error
    return listener


def application(blocks: gr.Blocks) -> FastAPI:
    """The page as a web application without uploads, statistics and outside requests."""
    outer = FastAPI(openapi_url=None)

    @outer.middleware("http")
    async def only_from_here(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    return gr.mount_gradio_app(
        outer,
        blocks,
        path="/",
        theme=page.theme(),
        footer_links=[],
        run_history=False,
        max_file_size=1,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        show_error=True,
        enable_monitoring=False,
    )


def serve(blocks: gr.Blocks, listener: socket.socket) -> None:
    """Serve the page until the process is interrupted."""
    settings: dict[str, Any] = {"log_level": "warning", "access_log": False}
    with listener:
        uvicorn.Server(uvicorn.Config(application(blocks), **settings)).run([listener])
