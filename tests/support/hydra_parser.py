"""Parse each option that fairseq passes to Hydra only once.

fairseq asks Hydra for a configuration by some 270 texts such as ``common.seed=1``, in every command
and for every checkpoint. Hydra reads them with a parser in pure Python, which takes half the time.
"""

import copy
from typing import Any

from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser

ORIGINAL = OverridesParser.parse_rule
PARSED: dict[tuple[str, str], Any] = {}


def parse_rule(parser: OverridesParser, text: str, rule: str) -> Any:
    """Return a copy of what the parser made of the same text."""
    if (text, rule) not in PARSED:
        PARSED[text, rule] = ORIGINAL(parser, text, rule)
    return copy.copy(PARSED[text, rule])


def copy_sources(repository: CachingConfigRepository, delegate: Any) -> None:
    """Copy the repository, but not the files and classes in it, which nothing changes."""
    repository.delegate, repository.cache = copy.copy(delegate), {}


def remember(of_defaults: bool = False) -> None:
    """Remember from now on; with ``of_defaults``, parse the defaults of fairseq's options first."""
    OverridesParser.parse_rule = parse_rule
    CachingConfigRepository.__init__ = copy_sources
    if of_defaults:
        from fairseq import options
        from fairseq.dataclass.utils import override_module_args

        training = ("data", "--arch", "transformer", "--optimizer", "adam")
        for parser, words in (
            (options.get_training_parser(), training),
            (options.get_interactive_generation_parser(), ("data", "--path", "model.pt")),
        ):
            arguments = options.parse_args_and_arch(parser, [*words])
            OverridesParser.create().parse_overrides(override_module_args(arguments)[0])
