"""``fairseq-ext serve``: serve translations over HTTP."""

import importlib.util
import ipaddress
import os
import sys
from dataclasses import replace
from itertools import chain

from fairseq_ext.commands import options
from fairseq_ext.decoding.search import MODEL_DEFAULTS, SearchOptions
from fairseq_ext.evaluation.outputs import read_lines
from fairseq_ext.serving.settings import KEY, Limits, Settings
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.files import FileVersions
from fairseq_ext.utils.option_fields import add_options, from_args


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve translations over HTTP, with LibreTranslate's interface",
        description="Serve /translate, /detect and /languages with LibreTranslate's interface, and "
        "/health and /metrics (for Prometheus). A page for translating is at /, the description of "
        "the interface at /docs. Concurrent requests are translated together. After SIGTERM or "
        "Ctrl-C, running requests finish; a second signal stops at once.",
        example="fairseq-ext serve tatoeba-es-en tatoeba-en-es --port 5000",
    )
    add_options(parser, Settings)
    add_options(parser.add_argument_group("limits"), Limits)
    group = parser.add_argument_group(
        "search",
        "Defaults that a bundle has for its model replace the defaults shown here. A request may "
        "ask for as many alternatives as --beam, less 1.",
    )
    add_options(group, SearchOptions, (*MODEL_DEFAULTS, "max_tokens"))
    parser.set_defaults(run=lambda args: serve(from_args(Settings, args)))


def serve(settings: Settings) -> int:
    """Run the server until a signal ends it, and return the exit status."""
    settings.check()
    settings = replace(settings, keys=_keys(settings), split_sentences=_splits(settings))
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.decoding.loading import models_of
    from fairseq_ext.serving import server
    from fairseq_ext.utils import address

    # Names are looked up here, so that all workers load the same commit from the Hub.
    models = [file for path in settings.models for file in models_of(path)]
    versions = FileVersions(chain(*map(bundle.files_of, models)))
    settings = replace(settings, models=models, versions=versions)
    listener = address.listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    if not settings.keys and not ipaddress.ip_address(host).is_loopback:
        print(
            f"warning: anybody who reaches port {port} of this machine can "
            f"translate; `--api-key-file FILE` or {KEY} makes a key necessary.",
            file=sys.stderr,
        )
    application = server.application(settings)  # workers load it again, but errors show up here
    loaded = application if settings.workers == 1 else None  # else only workers translate
    del application
    with options.ended_by_sigterm():  # the server handles signals itself once it runs
        print(address.url(listener), flush=True)
        return server.serve(loaded, settings, listener)
    return 0


def _splits(settings: Settings) -> bool:
    """Return the value of ``--split-sentences``, or its default.

    The default is True if sentence-splitter is installed, or else False, with a printed note.
    """
    if settings.split_sentences is not None:
        return settings.split_sentences
    if importlib.util.find_spec("sentence_splitter") is not None:
        return True
    print(
        f"note: {extras.missing('sentence_splitter')} Until then lines are translated whole, and a "
        "model that was trained on single sentences may leave some out. `--no-split-sentences` "
        "hides this note.",
        file=sys.stderr,
    )
    return False


def _keys(settings: Settings) -> list[str]:
    """Collect API keys from ``--api-key``, the variable :data:`KEY` and ``--api-key-file``."""
    keys = [settings.api_key, os.environ.get(KEY)]
    path = settings.api_key_file
    if path is not None:
        file_keys = [line.strip() for line in read_lines(path) if line.strip()]
        if not file_keys:
            raise ConfigError(f"`--api-key-file` {path} has no line with a key.")
        keys += file_keys
    return [key for key in keys if key]
