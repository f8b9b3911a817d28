"""Options of translation that fairseq accepts although they do not work."""

from __future__ import annotations

from typing import Any

from fairseq_ext.utils.errors import ConfigError

TRANSLATING = ("fairseq_cli.generate", "fairseq_cli.interactive")


def refuse_broken(cfg: Any, command: str) -> None:
    """Refuse options of translation that end in an error deep inside fairseq, or do nothing.

    Raises:
        ConfigError: an option, or a combination, that cannot work in the module ``command``.
    """
    generation = cfg.generation
    soft = generation.print_alignment == "soft"
    if generation.replace_unk is not None:
        raise ConfigError(
            "`--replace-unk` does not work in this fairseq (it reads a binarized corpus as text), "
            "and no model without alignments could do it. Leave it out; subwords leave hardly any "
            "unknown words."
        )
    if generation.print_step and cfg.task._name in ("translation", "translation_ext"):
        raise ConfigError(
            "`--print-step` is for models that refine a translation in several steps; leave it out."
        )
    if generation.constraints and command == "fairseq_cli.generate":
        raise ConfigError(
            "`--constraints` is for fairseq-interactive, where they follow each sentence after a "
            "tab; fairseq-generate has no place for them."
        )
    if command in TRANSLATING and (generation.beam < 1 or generation.nbest < 1):
        raise ConfigError("`--beam` and `--nbest` must be at least 1.")
    if command == "fairseq_cli.interactive" and soft:
        raise ConfigError(
            "`--print-alignment soft` is for fairseq-generate; fairseq-interactive prints "
            "`--print-alignment hard` only."
        )
    if generation.score_reference and soft:
        raise ConfigError(
            "`--print-alignment soft` does not go with `--score-reference`; give `hard`."
        )
