"""``fairseq-ext serve``: translations over HTTP."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairseq_ext.commands import options, search_options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.serving.limits import Limits
from fairseq_ext.utils.errors import ConfigError

KEY = "FAIRSEQ_EXT_API_KEY"
LIBRARIES = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="translations over HTTP, with LibreTranslate's interface",
        description="Answer /translate and /languages as LibreTranslate does, and /health and "
        "/metrics (for Prometheus). Concurrent requests are translated together. SIGTERM or Ctrl-C "
        "lets running requests finish; a second signal stops at once.",
    )
    option = parser.add_argument
    option(
        "models",
        type=Path,
        nargs="+",
        metavar="MODEL",
        help="file of `pack --engine`, which needs neither torch nor fairseq; or a checkpoint, a "
        "packed one, a bundle, the folder of a run, or ORG/NAME[@REVISION] on the Hugging Face "
        "Hub; several, of different languages each",
    )
    option(
        "--data",
        type=Path,
        metavar="DIR",
        help=options.DATA_HELP,
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
    _add_limits(parser.add_argument_group("limits"))
    _add_batches(
        parser.add_argument_group("search", "Defaults in the model's file come before those shown.")
    )
    parser.set_defaults(run=_serve)


def _add_limits(group: Any) -> None:
    for one in fields(Limits):
        kind = {"type": type(one.default), "default": one.default, "metavar": "N"}
        text = f"{one.metadata['help']} (%(default)s)"
        group.add_argument(f"--{one.name.replace('_', '-')}", **kind, help=text)


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


def _serve(args: argparse.Namespace) -> int:
    from fairseq_ext.utils import address, extras

    extras.need(*LIBRARIES)
    limits, keys = _checked(args), _keys(args)
    from fairseq_ext.decoding.loading import in_run
    from fairseq_ext.serving import server

    search = search_options.specified(args)
    models = [in_run(path) for path in args.models]  # of a name on the Hub, one commit for all
    settings = server.Settings(
        models, args.data, search, limits, keys, args.batch_size, args.max_tokens
    )
    listener = address.listen(args.host, args.port)
    made = server.application(settings)  # workers load it again: errors are found here
    if args.workers > 1:
        made = None  # this process only watches them, and needs no models
    print(address.url(listener), flush=True)
    return server.serve(made, settings, listener, workers=args.workers, grace=args.grace)


def _checked(args: argparse.Namespace) -> Limits:
    """The limits.

    Raises:
        ConfigError: a number out of range.
    """
    for name, least in (("workers", 1), ("grace", 0), ("batch_size", 1), ("max_tokens", 1)):
        if (value := getattr(args, name)) < least:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"`{option}` must be at least {least}, but is {value} instead.")
    limits = Limits(**{one.name: getattr(args, one.name) for one in fields(Limits)})
    limits.check()
    return limits


def _keys(args: argparse.Namespace) -> list[str]:
    """Keys from the option, the variable and the file.

    Raises:
        ConfigError: a key is not UTF-8, or the file has none or is not readable.
    """
    given = {"`--api-key`": args.api_key, f"`{KEY}`": os.environ.get(KEY)}
    for name, key in given.items():
        _require_utf8(name, key or "")
    keys = [key for key in given.values() if key]
    if args.api_key_file is None:
        return keys
    try:
        lines = args.api_key_file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"`--api-key-file` {args.api_key_file} cannot be read ({error})."
        ) from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise ConfigError(f"`--api-key-file` {args.api_key_file} has no line with a key.")
    return keys + found


def _require_utf8(name: str, key: str) -> None:
    """Refuse a key that no request could hold.

    Raises:
        ConfigError: the key, as Python decodes arguments and variables, is not UTF-8.
    """
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} must be UTF-8, but is not. Take another key.") from None
