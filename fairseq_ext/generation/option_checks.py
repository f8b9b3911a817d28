"""Refuse options of fairseq and of this package with which translation cannot work."""

import math
from typing import Any

from fairseq_ext.utils.errors import ConfigError, wrong_value
from fairseq_ext.utils.option_fields import flag

STEEPEST = 100  # largest exponent of a length penalty; far larger exponents give scores of 0 or ∞
TRANSLATING = ("fairseq_cli.generate", "fairseq_cli.interactive")
# Options that must be finite numbers: with NaN or infinity no hypothesis would have a score.
REAL = ("lenpen", "unkpen", "temperature", "max_len_a", "diversity_rate", "diverse_beam_strength")


def refuse_broken(cfg: Any, command: str) -> None:
    """Raise ConfigError if a generation option has no effect, or would make fairseq fail.

    ``command`` is the module of the command that runs, such as ``fairseq_cli.generate``.
    """
    generation = cfg.generation
    soft = generation.print_alignment == "soft"
    if generation.print_step and cfg.task._name in ("translation", "translation_ext"):
        raise ConfigError(
            "`--print-step` is for models that refine a translation in several steps; leave it out."
        )
    if generation.replace_unk is not None:  # it would read the binarized corpus as text
        raise ConfigError("`--replace-unk` does not work in this fairseq; leave it out.")
    if generation.constraints and command == "fairseq_cli.generate":
        raise ConfigError("`--constraints` is for fairseq-interactive; leave it out.")
    for name, is_used in (
        ("sampling", generation.sampling),
        ("diverse-beam-groups", generation.diverse_beam_groups > 0),
        ("match-source-len", generation.match_source_len),
        ("diversity-rate", generation.diversity_rate > -1),
    ):
        if generation.constraints and is_used:
            raise ConfigError(f"`--constraints` does not go with `--{name}`; give one of them.")
    if command in TRANSLATING and (generation.beam < 1 or generation.nbest < 1):
        raise ConfigError("`--beam` and `--nbest` must be at least 1.")
    groups, longest = generation.diverse_beam_groups, generation.max_len_b
    if groups > 0 and generation.beam % groups:
        raise ConfigError(
            f"`--diverse-beam-groups` must divide `--beam` ({generation.beam}), but is {groups}."
        )
    if command in TRANSLATING and generation.max_len_a < 0:
        raise wrong_value("--max-len-a", "at least 0", generation.max_len_a)
    if not generation.max_len_a and longest < generation.min_len:
        raise wrong_value("--max-len-b", f"at least `--min-len` ({generation.min_len})", longest)
    for name in REAL if command in TRANSLATING else ():
        value = getattr(generation, name)
        if not math.isfinite(value):
            raise wrong_value(flag(name), "a number", value)
    if command == "fairseq_cli.interactive" and soft:
        raise ConfigError(
            "`--print-alignment soft` is for fairseq-generate; fairseq-interactive prints "
            "`--print-alignment hard` only."
        )
    if generation.score_reference and soft:
        raise ConfigError(
            "`--print-alignment soft` does not go with `--score-reference`; give `hard`."
        )


def no_alignment(model: Any) -> str:
    """Return the reason why a model cannot align words, or an empty string if it can."""
    decoder = getattr(model, "decoder", model)
    cfg = getattr(decoder, "cfg", None)
    if getattr(decoder, "attention", decoder) is None or getattr(cfg, "no_cross_attention", False):
        return "its decoder has no attention over the source"
    return getattr(model, "no_alignment", "")


def check_sampling(epsilon: float, generation: Any) -> None:
    """Raise ConfigError if ``--epsilon-sampling epsilon`` does not suit other options.

    ``generation`` has the other options of generation, by their names in fairseq.
    """
    if not 0 <= epsilon < 1:
        raise wrong_value("--epsilon-sampling", "at least 0 and less than 1", epsilon)
    if epsilon and not getattr(generation, "sampling", False):
        raise ConfigError(
            "`--epsilon-sampling` needs `--sampling`; without `--sampling`, nothing is drawn."
        )
    for name in ("sampling_topk", "sampling_topp"):
        if epsilon and getattr(generation, name, -1) > 0:
            raise ConfigError(
                f"`--epsilon-sampling` does not go with `{flag(name)}`; choose one truncation."
            )


def check_gnmt_lenpen(alpha: float, generation: Any) -> None:
    """Raise ConfigError if ``--gnmt-lenpen alpha`` does not suit other ``generation`` options."""
    if not 0 <= alpha <= STEEPEST:
        raise ConfigError(
            f"`--gnmt-lenpen` must be a number from 0 to {STEEPEST}, but is {alpha} instead; 0 "
            "leaves the score to `--lenpen`."
        )
    if not alpha:
        return
    for name, default in (("lenpen", 1), ("unnormalized", False), ("score_reference", False)):
        if getattr(generation, name, default) != default:
            raise ConfigError(f"`--gnmt-lenpen` does not go with `{flag(name)}`; leave one out.")
