"""Build a server's two pages: a form at ``/`` to translate by hand, and the interface at ``/docs``.

Nothing on them comes from another machine.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
)
"""The Content-Security-Policy of both pages."""


def _fill(name: str, **parts: str) -> str:
    """Return a page of this folder with its style and other parts filled in."""
    folder = Path(__file__).parent
    style = (folder / "style.css").read_text(encoding="utf-8")
    return Template((folder / name).read_text(encoding="utf-8")).substitute(parts, style=style)


TRANSLATE = _fill("translate.html")


def interface(schema: Mapping[str, Any]) -> str:
    """Build the page at ``/docs``.

    Args:
        schema: JSON schema of a request to ``/translate``.
    """
    rows = (
        f"<tr><td><code>{html.escape(name)}</code></td>"
        f"<td>{html.escape(field.get('description', ''))}</td></tr>"
        for name, field in schema["properties"].items()
    )
    return _fill("interface.html", fields="".join(rows))
