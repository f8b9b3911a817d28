"""``fairseq-ext serve``: translations over HTTP."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.commands.options import Subparsers
from fairseq_ext.errors import ConfigError

if TYPE_CHECKING:
    from fairseq_ext.serving.limits import Limits

KEY = "FAIRSEQ_EXT_API_KEY"
LIBRARIES = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")
LIMITS = {
    "max_chars": (10_000, "characters of a request's texts"),
    "max_sentences": (100, "lines of a request's texts"),
    "max_body": (1_000_000, "bytes of a request"),
    "max_queue": (1_000, "sentences that wait, in a process; above it the answer is 429"),
    "timeout": (60.0, "seconds that a request may take to come, and again to be answered"),
}
SEARCH = {
    "beam": (int, "hypotheses followed; there is one alternative less than that"),
    "lenpen": (float, "length penalty: scores are divided by length to this power"),
    "max_len_a": (float, "at most this times the source tokens, plus --max-len-b, are written"),
    "max_len_b": (int, "see --max-len-a"),
}


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="translations over HTTP, with LibreTranslate's interface",
        description="Answer /translate and /languages as LibreTranslate does, and /health and "
        "/metrics (for Prometheus). Concurrent requests are translated together. SIGTERM or Ctrl-C "
        "lets the requests that are there end; a second one ends everything at once.",
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
        help="folder of fairseq-preprocess with the dictionaries (a model's own, or those of its "
        "training)",
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
        help="seconds for the requests that are there when it is to end (%(default)s)",
    )
    option("--api-key", metavar="KEY", help=f"requests need it; rather by {KEY} or the next option")
    option("--api-key-file", type=Path, metavar="FILE", help="requests need one of its lines")
    _add_limits(parser.add_argument_group("limits"))
    _add_batches(parser.add_argument_group("search", "Without these, as the model's file says."))
    parser.set_defaults(run=_serve)


def _add_limits(group: Any) -> None:
    for name, (default, text) in LIMITS.items():
        kind = {"type": type(default), "default": default, "metavar": "N"}
        group.add_argument(f"--{name.replace('_', '-')}", **kind, help=f"{text} (%(default)s)")


def _add_batches(group: Any) -> None:
    for name, (kind, text) in SEARCH.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text)
    for name, default, text in (
        ("--batch-size", 64, "sentences translated together"),
        ("--max-tokens", 4000, "source tokens translated together"),
    ):
        group.add_argument(
            name, type=int, default=default, metavar="N", help=f"{text} (%(default)s)"
        )


def _serve(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING)
    from fairseq_ext import address, extras

    extras.need(*LIBRARIES)
    limits, keys = _checked(args), _keys(args)
    from fairseq_ext.decoding.loading import in_run
    from fairseq_ext.serving import server

    search = {name: getattr(args, name) for name in SEARCH if getattr(args, name) is not None}
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
        ConfigError: a number that cannot be.
    """
    from fairseq_ext.serving.limits import Limits

    for name, least in (("workers", 1), ("grace", 0), ("batch_size", 1), ("max_tokens", 1)):
        if (value := getattr(args, name)) < least:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"`{option}` must be at least {least}, but is {value} instead.")
    limits = Limits(**{name: getattr(args, name) for name in LIMITS})
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
