"""The address on which the page is served."""

from __future__ import annotations

import socket

from fairseq_ext.errors import ConfigError


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
