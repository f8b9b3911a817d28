"""``fairseq-ext serve``: serve translations over HTTP."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from itertools import chain
from pathlib import Path

from fairseq_ext.commands import options, search_options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.commands.search_options import SearchOptions
from fairseq_ext.decoding.search import Search
from fairseq_ext.serving.limits import Limits
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import add_options, flag, from_args, option

KEY = "FAIRSEQ_EXT_API_KEY"
LIBRARIES = ("starlette", "pydantic", "uvicorn", "prometheus_client", "python_multipart")


@dataclass(frozen=True)
class BatchOptions:
    """How sentences are translated together."""

    beam: int | None = option(
        None,
        f"beam size; a request may ask for up to N - 1 alternatives ({Search.beam})",
        metavar="N",
    )
    lenpen: float | None = None
    max_len_a: float | None = None
    max_len_b: int | None = None
    batch_size: int = option(64, "sentences translated together (%(default)s)", metavar="N")
    max_tokens: int = option(4000, "source tokens translated together (%(default)s)", metavar="N")


@dataclass(frozen=True)
class Request:
    """The options of a call of ``serve``, one field each."""

    models: Sequence[Path] = option(
        MISSING,
        "bundle, which usually needs neither torch nor fairseq, or a checkpoint, folder of a run, "
        "or ORG/NAME[@REVISION] on the Hugging Face Hub; at most one for each pair of languages",
        "models",
        type=Path,
        nargs="+",
        metavar="MODEL",
    )
    data: Path | None = option(None, options.DATA_HELP, metavar="DIR")
    split_sentences: bool = option(
        False, "translate each sentence of a line alone, and join the translations"
    )
    host: str = option("127.0.0.1", "address to serve on (%(default)s)")
    port: int = option(5000, "port to serve on; 0: any free one (%(default)s)", metavar="N")
    workers: int = option(
        1,
        "processes, which share the processors and the models' memory (%(default)s)",
        metavar="N",
    )
    grace: int = option(
        30, "seconds for running requests to finish at shutdown (%(default)s)", metavar="S"
    )
    api_key: str | None = option(
        None,
        "key that requests must send; the process list shows it, so it is safer in "
        f"{KEY} or --api-key-file",
        metavar="KEY",
    )
    api_key_file: Path | None = option(None, "file of keys, one per line", metavar="FILE")
    allow_host: Sequence[str] = option(
        [],
        "further host name of this server, such as that of its proxy; * for any; may be repeated",
        action="append",
        metavar="NAME",
    )
    cors: Sequence[str] = option(
        [],
        "origin of web pages that may use this server, such as https://example.org; * for any; may "
        "be repeated",
        action="append",
        metavar="ORIGIN",
    )
    limits: Limits = field(default_factory=Limits)
    search: BatchOptions = field(default_factory=BatchOptions)

    def check(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: the message names the first.
        """
        for part, name, minimum in (
            *((self, "workers", 1), (self, "grace", 0)),
            *((self.search, "batch_size", 1), (self.search, "max_tokens", 1)),
        ):
            if (value := getattr(part, name)) < minimum:
                raise ConfigError(
                    f"`{flag(name)}` must be at least {minimum}, but is {value} instead."
                )
        self.limits.check()


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="serve translations over HTTP, with LibreTranslate's interface",
        description="Answer /translate, /detect and /languages as LibreTranslate does, and /health "
        "and /metrics (for Prometheus). A page for translating is at /, and the description of the "
        "interface at /docs. Concurrent requests are translated together. After SIGTERM or Ctrl-C, "
        "running requests finish; a second signal stops at once.",
    )
    add_options(parser, Request)
    add_options(parser.add_argument_group("limits"), Limits)
    group = parser.add_argument_group("search", "Defaults in the model's file replace those shown.")
    add_options(group, BatchOptions, ("beam",))
    add_options(group, SearchOptions, ("lenpen", "max_len_a", "max_len_b"))
    add_options(group, BatchOptions, ("batch_size", "max_tokens"))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    return serve(from_args(Request, args))


def serve(request: Request) -> int:
    """Serve until a signal, and return the exit status.

    Raises:
        FairseqExtError: options cannot work, or a model cannot be loaded.
    """
    from fairseq_ext.utils import address, extras

    extras.need(*LIBRARIES)
    request.check()
    keys = _keys(request)
    from fairseq_ext.decoding.loading import files_of, models_of
    from fairseq_ext.serving import server
    from fairseq_ext.utils.file_versions import FileVersions

    # Resolved here, so that a name on the Hub is one commit for all workers.
    models = [file for path in request.models for file in models_of(path)]
    settings = server.Settings(
        models,
        request.data,
        search_options.specified(request.search),
        request.limits,
        keys,
        request.search.batch_size,
        request.search.max_tokens,
        [*address.names_of(request.host), *map(str.lower, request.allow_host)],
        request.cors,
        request.split_sentences,
        FileVersions(chain(*map(files_of, models))),
    )
    listener = address.listen(request.host, request.port)
    application = server.application(settings)  # workers load it again, but errors show up here
    loaded = application if request.workers == 1 else None  # others only watch their workers
    del application
    with options.ended_by_sigterm():  # the server handles signals itself once it runs
        print(address.url(listener), flush=True)
        return server.serve(
            loaded, settings, listener, workers=request.workers, grace=request.grace
        )
    return 0


def _keys(request: Request) -> list[str]:
    """Read keys from the option, the variable and the file.

    Raises:
        ConfigError: a key is not UTF-8, or the file has no keys or cannot be read.
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
    """Refuse a key that no request could send.

    Raises:
        ConfigError: the key, in Python's decoding of arguments and variables, is not UTF-8.
    """
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} must be UTF-8, but is not. Take another key.") from None
