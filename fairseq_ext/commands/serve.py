"""``fairseq-ext serve``: translations over HTTP."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fairseq_ext.commands import options, search_options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.serving.limits import Limits
from fairseq_ext.utils import option_fields
from fairseq_ext.utils.errors import ConfigError

KEY = "FAIRSEQ_EXT_API_KEY"
LIBRARIES = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")


@dataclass(frozen=True)
class Request:
    """A call of ``serve``; the fields are the options of their names."""

    models: Sequence[Path]
    data: Path | None = None
    host: str = "127.0.0.1"
    port: int = 5000
    workers: int = 1
    grace: int = 30
    api_key: str | None = None
    api_key_file: Path | None = None
    allow_host: Sequence[str] = ()
    cors: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    beam: int | None = None
    lenpen: float | None = None
    max_len_a: float | None = None
    max_len_b: int | None = None
    batch_size: int = 64
    max_tokens: int = 4000
    split_sentences: bool = False

    def check(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: the first of them.
        """
        for name, minimum in (("workers", 1), ("grace", 0), ("batch_size", 1), ("max_tokens", 1)):
            if (value := getattr(self, name)) < minimum:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"`{option}` must be at least {minimum}, but is {value} instead.")
        self.limits.check()


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="translations over HTTP, with LibreTranslate's interface",
        description="Answer /translate, /detect and /languages as LibreTranslate does, /health and "
        "/metrics (for Prometheus); a page to translate on is at /, the interface at /docs. "
        "Concurrent requests are translated together. SIGTERM or Ctrl-C "
        "lets running requests finish; a second signal stops at once.",
    )
    option = parser.add_argument
    option(
        "models",
        type=Path,
        nargs="+",
        metavar="MODEL",
        help="a bundle, which mostly needs neither torch nor fairseq; or a checkpoint, the folder "
        "of a run, or ORG/NAME[@REVISION] on the Hugging Face Hub; several, of different languages "
        "each",
    )
    option(
        "--data",
        type=Path,
        metavar="DIR",
        help=options.DATA_HELP,
    )
    option(
        "--split-sentences",
        action="store_true",
        help="translate each sentence of a line alone, and join the translations",
    )
    option("--host", default="127.0.0.1", help="address to serve on (%(default)s)")
    option("--port", type=int, default=5000, metavar="N", help="0: any free one (%(default)s)")
    option(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes, which share the processors and the models' memory (%(default)s)",
    )
    option(
        "--grace",
        type=int,
        default=30,
        metavar="S",
        help="seconds that running requests get to finish at shutdown (%(default)s)",
    )
    option(
        "--api-key",
        metavar="KEY",
        help=f"key that requests must send; safer in {KEY} or by the next option, because the "
        "process list shows this one",
    )
    option("--api-key-file", type=Path, metavar="FILE", help="requests need one of its lines")
    option(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name of this server, such as that of a proxy before it; * for any",
    )
    option(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin of web pages that may use this server, such as https://example.org; * for any",
    )
    _add_limits(parser.add_argument_group("limits"))
    _add_batches(
        parser.add_argument_group("search", "Defaults in the model's file come before those shown.")
    )
    parser.set_defaults(run=_run)


def _add_limits(group: Any) -> None:
    for limit in fields(Limits):
        kind = {"type": type(limit.default), "default": limit.default, "metavar": "N"}
        text = f"{limit.metadata['help']} (%(default)s)"
        group.add_argument(f"--{limit.name.replace('_', '-')}", **kind, help=text)


def _add_batches(group: Any) -> None:
    beam = "beam size; a request may ask for one alternative fewer"
    search_options.add(group, search_options.OF_A_MODEL, beam=beam)
    for name, default, text in (
        ("--batch-size", 64, "sentences translated together"),
        ("--max-tokens", 4000, "source tokens translated together"),
    ):
        group.add_argument(
            name, type=int, default=default, metavar="N", help=f"{text} (%(default)s)"
        )


def _run(args: argparse.Namespace) -> int:
    return serve(option_fields.from_args(Request, args))


def serve(request: Request) -> int:
    """Serve until a signal ends it; returns the exit status.

    Raises:
        FairseqExtError: options that cannot work, or a model that cannot be loaded.
    """
    from fairseq_ext.utils import address, extras

    extras.need(*LIBRARIES)
    request.check()
    keys = _keys(request)
    from fairseq_ext.decoding.loading import in_run
    from fairseq_ext.serving import server

    models = [in_run(path) for path in request.models]  # of a name on the Hub, one commit for all
    settings = server.Settings(
        models,
        request.data,
        search_options.specified(request),
        request.limits,
        keys,
        request.batch_size,
        request.max_tokens,
        [*address.names_of(request.host), *map(str.lower, request.allow_host)],
        request.cors,
        request.split_sentences,
    )
    listener = address.listen(request.host, request.port)
    application = server.application(settings)  # workers load it again: errors are found here
    loaded = application if request.workers == 1 else None  # others only watch their workers
    del application
    with _ended_by_signals():
        print(address.url(listener), flush=True)
        return server.serve(
            loaded, settings, listener, workers=request.workers, grace=request.grace
        )
    return 0


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the block at a signal that comes before the server handles signals itself."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _keys(request: Request) -> list[str]:
    """Keys from the option, the variable and the file.

    Raises:
        ConfigError: a key is not UTF-8, or the file has none or is not readable.
    """
    sources = {"`--api-key`": request.api_key, f"`{KEY}`": os.environ.get(KEY)}
    for name, key in sources.items():
        _require_utf8(name, key or "")
    keys = [key for key in sources.values() if key]
    path = request.api_key_file
    if path is None:
        return keys
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`--api-key-file` {path} cannot be read ({error}).") from None
    file_keys = [line.strip() for line in lines if line.strip()]
    if not file_keys:
        raise ConfigError(f"`--api-key-file` {path} has no line with a key.")
    return keys + file_keys


def _require_utf8(name: str, key: str) -> None:
    """Refuse a key that no request could hold.

    Raises:
        ConfigError: the key, as Python decodes arguments and variables, is not UTF-8.
    """
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} must be UTF-8, but is not. Take another key.") from None
