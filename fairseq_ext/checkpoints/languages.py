"""Use a published model of many languages for one pair, by adding symbols to each sentence.

Three tasks of fairseq tell a model its languages in three ways. Each becomes options of the task
``translation_ext``, the only task that translation, training, bundles and the engine need to know:

==================================  ================================================================
``translation_multi_simple_epoch``  ``--source-prefix __en__`` (or the target's token, with
                                    ``--encoder-langtok tgt``), ``--target-prefix __de__``
``translation_from_pretrained_bart``  ``--source-suffix [en_XX]``, ``--target-suffix [ro_RO]``
``multilingual_translation``        none: the pair has an encoder and a decoder of its own
==================================  ================================================================
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_ext.utils.errors import CheckpointError, ConfigError

EPOCHS, MBART = "translation_multi_simple_epoch", "translation_from_pretrained_bart"
PAIRS = "multilingual_translation"
STYLES = {"multilingual": "__{}__", "mbart": "[{}]"}
SPECIFICATIONS = {"main": "", "mono_dae": "_dae", "mined": "_mined"}
"""Kinds of training data with their own language tokens, and the endings of these tokens."""
MASK = "<mask>"
LISTS = ("ML50_langs.txt", "langs.txt", "lang_dict.txt", "language_pairs.txt")
TASK_OPTIONS = ("left_pad_source", "left_pad_target", "max_source_positions",
                "max_target_positions")  # fmt: skip


@dataclass
class Plan:
    """The options and weights with which a model of many languages translates one pair.

    ``symbols`` are added to the dictionaries if missing there. ``task`` has options of
    ``translation_ext``, or is empty if the checkpoint's own task stays. ``model`` has changed
    options of the model, and ``weights`` is the prefix of the names of the pair's weights.
    """

    src: str
    tgt: str
    symbols: list[str] = field(default_factory=list)
    task: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    weights: str = ""


def plan(
    folder: Path,
    settings: Mapping[str, Any],
    dictionaries: Sequence[str],
    languages: tuple[str | None, str | None],
) -> Plan:
    """Plan how a published model translates between two languages, None for the training's.

    ``folder`` has the lists of languages that ``settings``, the options of the model's task, name.
    ``dictionaries`` are the languages that have a dictionary; "" if all languages share one.
    """
    name = str(settings.get("task") or settings.get("_name") or "translation")
    if not name.startswith("translation") and name != PAIRS:
        raise CheckpointError(f"{folder} holds a model of the task {name}, not of translation.")
    trained = settings.get("source_lang"), settings.get("target_lang")
    if name == EPOCHS:
        codes = _languages(folder, settings)
    elif name == MBART:
        codes = _split(settings.get("langs"))
    elif name == PAIRS:
        codes = sorted({code for pair in _pairs(folder, settings) for code in pair.split("-")})
    else:
        codes = [code for code in dictionaries if code]
    src, tgt = (code or default for code, default in zip(languages, trained, strict=True))
    multilingual = name in (EPOCHS, MBART, PAIRS)
    for option, value, code in zip(("--src", "--tgt"), languages, (src, tgt), strict=True):
        if multilingual or value is not None or code is None:
            _require_language(folder, option, code, codes)
        if not re.fullmatch(r"[\w-]{1,40}", str(code)):  # it becomes part of a file's name
            raise CheckpointError(f"{folder} has {str(code)[:40]!r}, which is no language code.")
    if not multilingual and None not in trained and (src, tgt) != trained:
        raise ConfigError(
            f"{folder} translates from {trained[0]} to {trained[1]} only, not from {src} to {tgt}; "
            "leave out `--src` and `--tgt`."
        )
    result = Plan(str(src), str(tgt))
    if name == EPOCHS:
        _add_tokens(folder, settings, codes, result)
    elif name == MBART:
        result.symbols = [*(STYLES["mbart"].format(code) for code in codes), MASK]
        result.task = {f"{side}_suffix": STYLES["mbart"].format(code)
                       for side, code in (("source", src), ("target", tgt))}  # fmt: skip
    elif name == PAIRS:
        if settings.get("encoder_langtok") or settings.get("decoder_langtok"):
            raise CheckpointError(
                f"{folder} has language tokens of the task {PAIRS}, unsupported here."
            )
        result.weights = f"models.{src}-{tgt}."
        result.task = {"source_lang": src}
    if result.task:
        result.task |= {"_name": "translation_ext", "source_lang": src, "target_lang": tgt}
        result.task |= {option: settings[option] for option in TASK_OPTIONS if option in settings}
        for option in ("left_pad_source", "left_pad_target"):
            value = result.task.get(option, option == "left_pad_source")
            result.task[option] = str(value) == "True"
        arch = str(settings.get("arch") or "")
        if arch.startswith(("mbart", "bart")):  # a Transformer, once its classifier is left out
            result.model = {"arch": "transformer"}
        elif arch.startswith("multilingual_"):
            result.model = {"arch": arch.removeprefix("multilingual_")}
    return result


def _add_tokens(
    folder: Path, settings: Mapping[str, Any], codes: Sequence[str], result: Plan
) -> None:
    """Add the language tokens of ``translation_multi_simple_epoch``."""
    if settings.get("lang_tok_replacing_bos_eos"):
        raise CheckpointError(
            f"{folder} was trained with `--lang-tok-replacing-bos-eos`, which is unsupported here."
        )
    style = STYLES.get(str(settings.get("lang_tok_style") or "multilingual"))
    encoder = settings.get("encoder_langtok")
    decoder = "tgt" if settings.get("decoder_langtok") else None
    langtoks = settings.get("langtoks")
    if isinstance(langtoks, Mapping) and "main" in langtoks:
        encoder, decoder = langtoks["main"]
    elif not encoder and not decoder:
        encoder, decoder = "src", "tgt"  # the options of the published commands
    kinds = settings.get("langtoks_specs") or ["main"]
    kinds = _split(kinds)
    if style is None or {encoder, decoder} - {"src", "tgt", None} or set(kinds) - {*SPECIFICATIONS}:
        raise CheckpointError(f"{folder} has language tokens of an unsupported kind.")
    result.symbols = [style.format(code + SPECIFICATIONS[kind]) for kind in kinds for code in codes]
    if style == STYLES["mbart"]:
        result.symbols.append(MASK)
    sides = {"src": result.src, "tgt": result.tgt}
    result.task = {
        "source_prefix": style.format(sides[encoder]) if encoder else "",
        "target_prefix": style.format(sides[decoder]) if decoder else "",
    }


def _languages(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """Return the languages of ``translation_multi_simple_epoch``, in the order of their tokens."""
    langs = settings.get("langs")
    if langs:
        return _split(langs)
    for name in (Path(str(settings.get("lang_dict") or "-")).name, *LISTS[:3]):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8").replace(",", " ").split()
    return sorted({code for pair in _pairs(folder, settings) for code in pair.split("-")})


def _pairs(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    pairs = settings.get("lang_pairs")
    names = sorted(path.name for path in folder.glob("language_pairs*.txt"))
    if not pairs or (isinstance(pairs, str) and "/" in pairs):
        for name in (Path(str(pairs)).name, *names):
            if (folder / name).is_file():
                return _split((folder / name).read_text(encoding="utf-8"))
        raise ConfigError(
            f"{folder} does not list its languages; put the list from its archive beside the model "
            f"as {LISTS[1]} or {LISTS[3]}."
        )
    return _split(pairs)


def _split(value: Any) -> list[str]:
    """Return the words of a list, or of a text in which commas or white space separate them."""
    words: Iterable[Any] = (
        value.replace(",", " ").split() if isinstance(value, str) else value or ()
    )
    return [str(word) for word in words]


def _require_language(folder: Path, option: str, code: str | None, codes: Sequence[str]) -> None:
    """Refuse a language that the model lacks, or a missing language that the model needs."""
    if code in codes or (code is not None and not codes):
        return
    near = difflib.get_close_matches(str(code), codes, 3, 0.5) if code else []
    near = near or [other for other in codes if code and other.startswith(code[:2])][:3]
    listed = ", ".join(codes[:6]) + (f" and {len(codes) - 6} more" if len(codes) > 6 else "")
    if code is None:
        raise ConfigError(f"`{option}` must be one of the languages of {folder}: {listed}.")
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {listed}."
    raise ConfigError(f"`{option} {code}` is no language of {folder}; {hint}")
