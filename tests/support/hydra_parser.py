"""Let Hydra parse each option of fairseq only once.

In every command and for every checkpoint, Hydra makes a configuration from some 270 texts such as
``common.seed=1``. Parsing these texts in pure Python takes a third of the time.
"""

import copy
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

try:
    from hydra._internal.config_repository import CachingConfigRepository
except ImportError:  # Hydra 1.0, which fairseq 0.12.2 requires, is left as it is
    CachingConfigRepository = None

ORIGINAL = OverridesParser.parse_rule
PARSED: dict[tuple[str, str], Any] = {}


def parse_rule(parser: OverridesParser, text: str, rule: str) -> Any:
    """Parse a text, or return a copy of the result if the same text has been parsed before."""
    if (text, rule) not in PARSED:
        PARSED[text, rule] = ORIGINAL(parser, text, rule)
    return copy.copy(PARSED[text, rule])


def copy_sources(repository: Any, delegate: Any) -> None:
    """Initialize a repository with a shallow copy of ``delegate``, whose content never changes."""
    repository.delegate, repository.cache = copy.copy(delegate), {}


def remember() -> None:
    """Let Hydra store its results."""
    if CachingConfigRepository is not None:
        OverridesParser.parse_rule = parse_rule
        CachingConfigRepository.__init__ = copy_sources


def parse_defaults() -> None:
    """Parse the default options of a training with Adam and of decoding, for all later forks."""
    from fairseq import options
    from fairseq.dataclass.utils import override_module_args

    if CachingConfigRepository is None:
        return
    training = ("data", "--arch", "transformer", "--optimizer", "adam")
    for parser, words in (
        (options.get_training_parser(), training),
        (options.get_interactive_generation_parser(), ("data", "--path", "model.pt")),
    ):
        arguments = options.parse_args_and_arch(parser, [*words])
        OverridesParser.create().parse_overrides(override_module_args(arguments)[0])
