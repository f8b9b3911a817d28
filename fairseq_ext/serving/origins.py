"""Which web pages may use a server, and what its own pages may load."""

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

ANY = "*"
POLICY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'; "
    "form-action 'none'; base-uri 'none'"
}
"""Headers of a page that contains its scripts, styles and pictures; a browser loads no others."""


class OriginFilter:
    """ASGI middleware that refuses requests of foreign web pages (status 403).

    It checks two headers:

    - ``Host`` must be ``localhost``, an IP address or one of ``names``. This stops pages whose own
      domain name points at this machine (DNS rebinding).
    - ``Origin``, if there is one, must be this server or one of ``origins``, such as
      ``https://example.org``. This stops all other foreign pages.

    If ``names`` or ``origins`` contains ``*``, the header may be anything.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], origins: Collection[str]) -> None:
        self.app, self.names, self.origins = app, {*names, "localhost"}, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._error(Headers(scope=scope))):
            await JSONResponse({"error": error}, 403)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _error(self, headers: Headers) -> str | None:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if ANY not in self.names and not (len(hosts) == 1 and self._is_ours(hosts[0])):
            return (
                "This server has another name. Use its IP address, or start it with the option "
                "`--host NAME` (behind a proxy: `serve --allow-host NAME`)."
            )
        allowed = {ANY, *origins} if ANY in self.origins else {*self.origins}
        server = hosts[0].lower() if hosts else None  # names may contain `*`
        for origin in origins:
            if origin not in allowed and origin.partition("://")[2].lower() != server:
                return "Pages of other origins are refused; `serve --cors ORIGIN` allows them."
        return None

    def _is_ours(self, header: str) -> bool:
        """Return whether a ``Host`` header has one of this server's names, or an IP address."""
        try:
            host = urlsplit(f"//{header}").hostname or ""
            return host in self.names or bool(ipaddress.ip_address(host))
        except ValueError:  # raised for a header without a host, too
            return False


def names_of(host: str) -> set[str]:
    """Return the names, in small letters, that a request's ``Host`` header may have.

    They are ``host``, the option ``--host`` of the server, and the name of this machine. Addresses
    that stand for all interfaces, such as ``0.0.0.0``, are left out.
    """
    return {host.lower(), socket.gethostname().lower()} - {"", "0.0.0.0", "::"}
