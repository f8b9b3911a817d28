"""The options of a server, with its limits on requests."""

import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from fairseq_ext.decoding.search import DATA_HELP, KEEP_HELP, SearchOptions
from fairseq_ext.text.placeholders import Keeper, keeper
from fairseq_ext.utils.errors import ConfigError, wrong_value
from fairseq_ext.utils.files import FileVersions
from fairseq_ext.utils.option_fields import flag, option, require_at_least

KEY = "FAIRSEQ_EXT_API_KEY"
HOST = r"\*|[\w.-]+"
# Browsers send the names in an origin in small letters, and names in other scripts in Punycode.
ORIGIN = r"\*|null|file://|[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]_-]+"


def _limit(default: float, text: str) -> Any:
    return option(default, f"{text} (%(default)s)", metavar="N")


@dataclass(frozen=True)
class Limits:
    """The limits of requests (size, number, duration) and of a batch, as options of a server."""

    max_chars: int = _limit(10_000, "most characters in all texts of a request")
    max_sentences: int = _limit(
        250, "most lines (empty ones, too), and most sentences, in all texts of a request"
    )
    max_body: int = _limit(1_000_000, "most bytes of a request")
    max_queue: int = _limit(
        1_000, "sentences that may wait in one process; further requests get status 429"
    )
    batch_size: int = _limit(64, "most sentences in a batch")
    timeout: float = _limit(60.0, "seconds to receive a request, and as many to answer it")

    def check(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not 0 < value < float("inf"):
                raise wrong_value(flag(limit.name), "above 0", value)
        if self.max_queue < self.max_sentences:
            wish = f"at least `--max-sentences`, which is {self.max_sentences}"
            raise wrong_value("--max-queue", wish, self.max_queue)


@dataclass(frozen=True)
class Settings:
    """The options of a server, which are pickled for its workers."""

    models: Sequence[Path] = option(
        MISSING,
        "bundle, which usually needs neither torch nor fairseq, or a checkpoint, folder of a run, "
        "or ORG/NAME[@REVISION] on the Hugging Face Hub; at most one for each pair of languages",
        "models",
        nargs="+",
        metavar="MODEL",
    )
    data: Path | None = option(None, DATA_HELP, metavar="DIR")
    split_sentences: bool | None = option(
        None,
        "translate each sentence of a line alone, and join the translations (default: if the "
        "library sentence-splitter is installed)",
    )
    keep: Sequence[str] = option([], KEEP_HELP, action="append", metavar="PATTERN")
    keep_addresses: bool = option(
        True, "keep URLs, e-mail addresses and emoji as they are (default: yes)"
    )
    host: str = option("127.0.0.1", "address to serve on (%(default)s)")
    port: int = option(5000, "port to serve on; 0: any free one (%(default)s)")
    workers: int = option(
        1,
        "processes, which share the processors; each has its own copy of the models (%(default)s)",
    )
    grace: int = option(
        30, "seconds for running requests to finish at shutdown (%(default)s)", metavar="S"
    )
    api_key: str | None = option(
        None,
        "key that requests must send; a process list shows this option, so it is safer to give the "
        f"key in {KEY} or --api-key-file",
        metavar="KEY",
    )
    api_key_file: Path | None = option(None, "file of keys, one per line")
    allow_host: Sequence[str] = option(
        [],
        "further host name of this server, such as its proxy's; * for any; may be repeated",
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
    search: SearchOptions = field(default_factory=SearchOptions)
    # API keys, one of which a request must have; without keys, every request is answered.
    keys: Sequence[str] = field(default=(), repr=False)
    # Versions of the models' files when the server starts; all workers must use them.
    versions: FileVersions = field(default_factory=FileVersions)

    def check(self) -> None:
        require_at_least(self, workers=1, grace=0)
        self.limits.check()
        self.search.search({})  # refuses wrong values
        self.keeper(in_html=False)
        if self.api_key == "":
            raise ConfigError(
                "`--api-key` must not be empty; leave it out if requests need no key."
            )
        host = "a host name in ASCII without port, such as translate.example.org, or *"
        origin = "an origin in small letters without path, such as https://example.org, or *"
        for name, form, wish in (("allow_host", HOST, host), ("cors", ORIGIN, origin)):
            for value in getattr(self, name):
                if not re.fullmatch(form, value, re.ASCII):
                    raise wrong_value(flag(name), wish, value)

    def keeper(self, in_html: bool) -> Keeper | None:
        """Return a finder of text that stays untranslated, such as URLs.

        It finds matches of ``keep``, addresses if ``keep_addresses`` is set, and tags if
        ``in_html`` is set. If all three are off, return None.
        """
        return keeper(self.keep, in_html, self.keep_addresses)
