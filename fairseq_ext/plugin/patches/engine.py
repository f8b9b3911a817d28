"""``--engine``: translate with the engine instead of fairseq's generator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fairseq_ext.engine import DEFAULT, ENGINES, FAIRSEQ, HELP
from fairseq_ext.plugin.patches.table import Layer, Patch


def _add_option() -> None:
    """A field more in fairseq's options of generation, for its commands and its YAML."""
    from fairseq.dataclass import ChoiceEnum
    from fairseq.dataclass.configs import GenerationConfig
    from fairseq.dataclass.initialize import hydra_init

    if "engine" in GenerationConfig.__dataclass_fields__:
        return
    kind = ChoiceEnum([FAIRSEQ, *ENGINES])
    said = (
        f"{HELP}. Where the engine lacks an option or a model, the log says why fairseq translates"
    )
    field = dataclasses.field(default=DEFAULT, metadata={"help": said})
    one = dataclasses.make_dataclass("One", [("engine", kind, field)])
    GenerationConfig.__dataclass_fields__["engine"] = one.__dataclass_fields__["engine"]
    GenerationConfig.__annotations__["engine"] = kind
    GenerationConfig.engine = DEFAULT
    hydra_init()


def _build_generator(original: Callable) -> Callable:
    def build_generator(self: Any, models: Any, args: Any, *rest: Any, **options: Any) -> Any:
        trained = any(model.training for model in models)  # their weights will change
        generator = original(self, models, args, *rest, **options)
        numbers = ENGINES.get(str(getattr(args, "engine", FAIRSEQ)))
        if trained or numbers is None:
            return generator
        from fairseq_ext.engine.generator import with_engine

        return with_engine(generator, models, self.target_dictionary, numbers)

    return build_generator


PATCHES = (
    Patch(
        name="engine",
        reason="fairseq's generator spends most of its time between the products",
        act=_add_option,
        layers=(Layer("fairseq.tasks.fairseq_task:FairseqTask.build_generator", _build_generator),),
    ),
)
