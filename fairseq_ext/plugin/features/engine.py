"""``--engine`` and ``--shortlist``: translate with our engine instead of fairseq's generator.

The engine (:mod:`fairseq_ext.engine`) runs models in C instead of torch.
"""

from collections.abc import Callable
from typing import Any, Optional

from fairseq_ext.engine import DEFAULT, ENGINES, FAIRSEQ, HELP, SHORTLIST_HELP
from fairseq_ext.plugin.patching import acting, add_options, around
from fairseq_ext.utils.errors import ConfigError


@acting("engine")
def _add_option() -> None:
    """Add ``--engine`` and ``--shortlist`` to fairseq's generation options.

    Problem: fairseq's generator is slow, because it spends most of its time outside matrix
    products.
    """
    from fairseq.dataclass import ChoiceEnum
    from fairseq.dataclass.configs import GenerationConfig

    help_text = (
        f"{HELP}. If the engine does not support an option or a model, fairseq's generator "
        "translates, and the log says why"
    )
    choice = ChoiceEnum([FAIRSEQ, *ENGINES])
    path = Optional[str]  # noqa: UP045 (fairseq reads it)
    options = {"engine": (choice, DEFAULT, help_text), "shortlist": (path, None, SHORTLIST_HELP)}
    add_options(GenerationConfig, options)


@around("fairseq.tasks.fairseq_task:FairseqTask.build_generator", patch="engine")
def _build_generator(
    original: Callable, self: Any, models: Any, args: Any, *rest: Any, **options: Any
) -> Any:
    trained = any(model.training for model in models)  # their weights will change
    generator = original(self, models, args, *rest, **options)
    numbers = ENGINES.get(str(getattr(args, "engine", FAIRSEQ)))
    path = None if trained else getattr(args, "shortlist", None)
    if numbers is None and path is not None:
        raise ConfigError(
            "`--shortlist` is for the engine, but `--engine` is `fairseq`; leave one out."
        )
    if trained or numbers is None:
        return generator
    from fairseq_ext.engine import shortlist
    from fairseq_ext.generation.on_engine import with_engine

    target, listed = self.target_dictionary, None
    if path is not None:
        listed = shortlist.read(path, self.source_dictionary.symbols, target.symbols)
    return with_engine(generator, models, target, numbers, listed)
