"""Serving a page of gradio's, which asks nothing of any other machine."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import gradio as gr
import uvicorn
from fastapi import FastAPI

from fairseq_ext.demo import page

if TYPE_CHECKING:
    from fastapi import Request, Response

# The page needs its own scripts, styles and pictures; a browser asks nobody else for anything.
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'; "
    "form-action 'self'"
)


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
    settings["timeout_graceful_shutdown"] = 1  # seconds: a page that is open holds a connection
    with listener:
        uvicorn.Server(uvicorn.Config(application(blocks), **settings)).run([listener])
