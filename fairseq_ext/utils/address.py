"""Listen on the network address of `demo` or `serve`."""

import socket

from fairseq_ext.utils.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 stands for any free port.

    Raise ConfigError if the address is not one of this machine, or the port is not free.
    """
    try:
        if not 0 <= port <= 65535:  # getaddrinfo would take it modulo 65,536
            raise OverflowError("a port is a number from 0 to 65535")
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"`--host` and `--port` must be an address of this machine and a free port, but are "
            f"{host} and {port} instead ({error})."
        ) from error
    return listener


def url(listener: socket.socket) -> str:
    """Return the URL of a socket from :func:`listen`."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"
