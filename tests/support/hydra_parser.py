"""Let Hydra parse each option of fairseq only once, and compose each choice of groups only once.

In every command and for every checkpoint, Hydra makes a configuration from some 270 texts such as
``common.seed=1``. Half of the time goes into parsing these texts in pure Python. Most of the other
half goes into composing groups such as ``model=bmt``, which does not depend on the options.
"""

import copy
import functools
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser

try:
    from hydra._internal.config_repository import CachingConfigRepository
except ImportError:  # Hydra 1.0, which fairseq 0.12.2 requires, is left as it is
    CachingConfigRepository = None

ORIGINAL = OverridesParser.parse_rule
PARSED: dict[tuple[str, str], Any] = {}
COMPOSE = getattr(ConfigLoaderImpl, "_load_configuration_impl", None)
COMPOSED: dict[tuple[object, ...], list[Any]] = {}


def parse_rule(parser: OverridesParser, text: str, rule: str) -> Any:
    """Parse a text, or return a copy of the result if the same text has been parsed before."""
    if (text, rule) not in PARSED:
        PARSED[text, rule] = ORIGINAL(parser, text, rule)
    return copy.copy(PARSED[text, rule])


def copy_sources(repository: Any, delegate: Any) -> None:
    """Initialize a repository with a shallow copy of ``delegate``, whose content never changes."""
    repository.delegate, repository.cache = copy.copy(delegate), {}


def schemas(store: dict[str, Any]) -> list[Any]:
    """List the defaults of all groups that fairseq and the plugin have stored."""
    return [
        leaf
        for value in store.values()
        for leaf in (schemas(value) if isinstance(value, dict) else [value])
    ]


def compose(
    loader: ConfigLoaderImpl,
    config_name: str | None,
    overrides: list[str],
    *,
    at_once: bool,
    **how: Any,
) -> Any:
    """Compose a configuration: set the options in a copy of the configuration of its groups.

    That configuration is stored at the second use of the groups, or with ``at_once`` at the first.
    """
    if how["from_shell"]:
        return COMPOSE(loader, config_name, overrides, **how)
    groups = [text for text in overrides if "." not in text.partition("=")[0]]
    defaults = schemas(ConfigStore.instance().repo)
    key = (config_name, str(loader.get_search_path()), *groups, *map(id, defaults))
    if key not in COMPOSED:
        COMPOSED[key] = [defaults]  # kept, so that no later objects have the same ids
        if not at_once:
            return COMPOSE(loader, config_name, overrides, **how)
    if len(COMPOSED[key]) == 1:
        COMPOSED[key].append(COMPOSE(loader, config_name, groups, **how))
    values = [text for text in overrides if "." in text.partition("=")[0]]
    parsed = OverridesParser.create().parse_overrides(values)
    loader.validate_sweep_overrides_legal(parsed, how["run_mode"], from_shell=False)
    configuration = copy.deepcopy(COMPOSED[key][1])
    loader._apply_overrides_to_config(parsed, configuration)
    return configuration


def remember(of_defaults: bool = False) -> None:
    """Let Hydra store its results; with ``of_defaults``, parse fairseq's default options now.

    Processes that run commands set ``of_defaults``. Most commands compose a single configuration,
    so it is not stored at its first use.
    """
    if CachingConfigRepository is None:
        return
    composing = functools.partialmethod(compose, at_once=not of_defaults)
    ConfigLoaderImpl._load_configuration_impl = composing
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


def compose_defaults() -> None:
    """Store the configurations that commands compose most: decoding, and training with Adam."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    tasks = [(options.get_generation_parser(), ("--path", "model.pt"))]
    smoothed = "label_smoothed_cross_entropy"
    for arch, loss in (("gru_tiny", "cross_entropy"), ("gru_tiny", smoothed), ("lstm", smoothed)):
        words = ("--arch", arch, "--optimizer", "adam", "--criterion", loss)
        tasks.append((options.get_training_parser(), words))
    for parser, words in tasks:
        arguments = options.parse_args_and_arch(parser, ["data", *words])
        for _ in range(2):
            convert_namespace_to_omegaconf(arguments)
