"""Serve a page of gradio's without contacting any other machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI

from fairseq_ext.demo import page
from fairseq_ext.demo.request_filter import Gate

VISITORS = 100
"""How many open pages, some 90 KB each, and how many events gradio remembers; its default is 10,000
of both."""


def _beside(name: str) -> str:
    """Read a file of this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def application(blocks: gr.Blocks, host: str) -> Gate:
    """Make a web application of the page, without uploads, statistics and its own description.

    Args:
        blocks: the page.
        host: the address or name that it is served on.
    """
    blocks.state_session_capacity = VISITORS
    blocks._queue.ANALYTICS_MAX_EVENTS = VISITORS
    outer = gr.mount_gradio_app(
        FastAPI(openapi_url=None),
        blocks,
        path="/",
        app_kwargs={"openapi_url": None},
        theme=page.theme(),
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
    return Gate(outer, host, {number for number, function in blocks.fns.items() if function.fn})


def serve(blocks: gr.Blocks, listener: socket.socket, host: str) -> None:
    """Serve the page until the process is interrupted.

    Args:
        blocks: the page.
        listener: from :func:`fairseq_ext.utils.address.listen`.
        host: as for :func:`application`.
    """
    settings: dict[str, Any] = {"log_level": "warning", "access_log": False}
    settings["timeout_graceful_shutdown"] = 1  # seconds, because an open page holds a connection
    with listener:
        uvicorn.Server(uvicorn.Config(application(blocks, host), **settings)).run([listener])
