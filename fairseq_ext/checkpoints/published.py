"""Use trained models in the form in which fairseq's authors publish them.

A published archive or folder has ``model.pt`` or ``model1.pt`` … (an ensemble), dictionaries and
the files of the subwords, but does not say how text becomes tokens. So :func:`prepare` makes
another folder, in the user's cache, that looks like a ``--save-dir``. It has links to the
checkpoints, copies of the dictionaries, a ``text.json``, and a file ``published.json`` with options
that replace those in the checkpoints. Nothing in the published folder is run, and nothing is
written into it.

Multilingual models have one of three tasks of fairseq. :func:`prepare` replaces these tasks by
``translation_ext``, so that all other code needs to know only this task. Options of
``translation_ext`` tell the model the languages. The table shows these options for each task that
is replaced, with translation from English to German or Romanian as the example:

==================================  ================================================================
``translation_multi_simple_epoch``  ``--source-prefix __en__``, ``--target-prefix __de__``; both
                                    with ``__de__`` if the model has ``--encoder-langtok tgt``
``translation_from_pretrained_bart``  ``--source-suffix [en_XX]``, ``--target-suffix [ro_RO]``
``multilingual_translation``        none: only the weights for this pair of languages are kept
==================================  ================================================================
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_ext.checkpoints import bundle, dictionaries, layout
from fairseq_ext.text import pipeline, subwords
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils import files
from fairseq_ext.utils.archives import unpacked_in_cache
from fairseq_ext.utils.errors import CheckpointError, ConfigError, EnvironmentProblem
from fairseq_ext.utils.json_files import write_json
from fairseq_ext.utils.parsing import near_names

MIRROR = "FAIRSEQ_EXT_PUBLISHED"
"""Environment variable with a folder or address that replaces the server of published archives."""
RUN = ("average.pt", "checkpoint_best.pt", "checkpoint_last.pt")
"""Checkpoints in the folder of a run; the first that exists is its model."""
ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar", ".zip")
CACHE = "published"  # a folder in the user's cache
_ENSEMBLE = re.compile(r"(\w+\.)?model\d*\.pt")
_DICTIONARY = re.compile(r"dict\.([\w-]+)\.txt")

KINDS = ("transformer", "lightconv", "dynamicconv", "conv")
"""How the names of :func:`hub_models` begin."""
EPOCHS, MBART = "translation_multi_simple_epoch", "translation_from_pretrained_bart"
PAIRS = "multilingual_translation"
STYLES = {"multilingual": "__{}__", "mbart": "[{}]"}
SPECIFICATIONS = {"main": "", "mono_dae": "_dae", "mined": "_mined"}
"""Kinds of training data with their own language tokens, and the endings of these tokens."""
MASK = "<mask>"
DATA_TAGS = ("<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>")
"""Symbols of NLLB-200 for the origin of a training pair; they follow its language tokens."""
LISTS = ("ML50_langs.txt", "langs.txt", "lang_dict.txt", "language_pairs.txt")
TASK_OPTIONS = ("data", "left_pad_source", "left_pad_target", "max_source_positions",
                "max_target_positions")  # fmt: skip

logger = logging.getLogger(__name__)


@functools.cache
def hub_models() -> dict[str, dict[str, str]]:
    """Return the translation models that fairseq's authors publish, by name.

    Each has the URL of its archive as ``path``. Most also name their ``tokenizer`` and ``bpe``.
    """
    # Otherwise the import would advise users to install a package for speech.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    from fairseq.models.fconv import FConvModel
    from fairseq.models.lightconv import LightConvModel
    from fairseq.models.transformer import TransformerModel

    entries: dict[str, Any] = {}
    for model in (TransformerModel, LightConvModel, FConvModel):
        entries |= model.hub_models()
    return {name: {"path": e} if isinstance(e, str) else e for name, e in entries.items()}


def is_prepared(path: str | Path) -> bool:
    """Return whether a checkpoint is in a folder that :func:`prepare` has made."""
    return os.path.isfile(Path(path).parent / layout.CHANGES)  # noqa: PTH113  # may be any text


def prepare(path: Path, src: str | None = None, tgt: str | None = None) -> list[Path]:
    """Make a folder like a ``--save-dir`` for a published model; return its checkpoints.

    The checkpoints in the folder are links. ``path`` is an archive, a folder, a checkpoint in a
    folder, or a name in :func:`hub_models`. If there is no published model, return []. ``src`` and
    ``tgt`` choose the languages of a multilingual model; None stands for those in its options.

    Raises:
        CheckpointError: a file is damaged, or the model is of a kind that is not supported.
        ConfigError: the model does not translate these languages, or lacks a file for them.
        EnvironmentProblem: the cache cannot be written to.
    """
    try:
        path = downloaded(path)
        if bundle.is_bundle(path):
            return []
        folder = path.parent if path.is_file() else path
        if path.is_file() and path.name.endswith(ARCHIVES):
            folder = unpacked_in_cache(path, f"{CACHE}/archives", _model_in)
        ensemble = _ensemble(folder, path)
        if not ensemble or (folder / pipeline.FILE).exists():
            return []
        return _prepared(folder, ensemble, path, (src, tgt))
    except OSError as error:
        raise EnvironmentProblem(files.explain(error)) from error


def downloaded(path: Path) -> Path:
    """Download the archive of a model named in :func:`hub_models`; return its path in the cache.

    Return any other ``path`` unchanged, but raise CheckpointError if it looks like the name of a
    published model. The environment variable :data:`MIRROR` can name another server or a folder
    with the archives.
    """
    name = str(path)
    kind = name.partition(".")[0]
    if path.exists() or kind not in KINDS or kind == name or name != path.name:
        return path
    if name.endswith((".pt", *ARCHIVES)):
        return path
    models = hub_models()
    if name not in models:
        names = sorted(other for other in models if other.startswith(f"{kind}."))
        raise CheckpointError(
            f"{name} does not exist, and fairseq's authors publish no model of this name. Names "
            f"like it are {', '.join(near_names(name, names) or names)}."
        )
    from fairseq_ext.corpora import downloads

    cache = files.cache_folder() / CACHE / "downloads"
    return downloads.fetch(models[name]["path"], cache, os.environ.get(MIRROR) or None)


def _ensemble(folder: Path, path: Path) -> list[Path]:
    """Return the checkpoints of the published model in ``folder``; [] if there is no such model.

    If ``path`` is a checkpoint in ``folder``, return only ``path``. Otherwise return the
    checkpoints named like ``model1.pt``, or else the only checkpoint.
    """
    if not folder.is_dir() or (folder / "bundle.json").exists() or not _dictionaries(folder):
        return []
    checkpoints = sorted(folder.glob("*.pt"))
    if any(path.name in RUN for path in checkpoints):
        return []
    if path.is_file() and path.parent == folder:
        return [path] if path in checkpoints else []
    ensemble = [path for path in checkpoints if _ENSEMBLE.fullmatch(path.name)]
    return ensemble or checkpoints[: len(checkpoints) == 1]


def _dictionaries(folder: Path) -> dict[str, Path]:
    """Return the dictionaries of a folder by language; if all languages share one, by ""."""
    named = {match[1]: path for path in sorted(folder.glob("dict.*.txt"))
             if (match := _DICTIONARY.fullmatch(path.name))}  # fmt: skip
    shared = [folder / name for name in ("dict.txt", "dictionary.txt")]
    shared += sorted(folder.glob("model_dict.*.txt"))
    return named or next(({"": path} for path in shared if path.is_file()), {})


def _model_in(folder: Path) -> Path:
    """Return a model's folder in an unpacked archive; raise CheckpointError if there is none."""
    for candidate in (folder, *sorted(filter(Path.is_dir, folder.iterdir()))):
        if _ensemble(candidate, candidate):
            return candidate
    raise CheckpointError("it has no model.pt with its dictionaries.")


def _prepared(
    folder: Path, ensemble: Sequence[Path], path: Path, languages: tuple[str | None, str | None]
) -> list[Path]:
    """Make a model's folder in the cache unless it exists; return the links to its checkpoints.

    ``folder`` has the published files, among them the checkpoints ``ensemble``. ``path`` and
    ``languages`` are as in :func:`prepare`.
    """
    content = [(entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
               for entry in sorted(folder.iterdir()) if entry.is_file()]  # fmt: skip
    names = [member.name for member in ensemble]
    key = repr((str(folder.absolute()), names, path.name, languages, content))
    home = files.cache_folder() / CACHE / hashlib.sha256(key.encode()).hexdigest()[:24]
    home.mkdir(parents=True, exist_ok=True)
    links = [home / name for name in names]
    for link, member in zip(links, ensemble, strict=True):
        with suppress(FileExistsError):
            link.symlink_to(member.absolute())
    # Imported here because bundles do not need torch.
    from fairseq_ext.checkpoints import safe_load, storage

    settings = layout.options(storage.peek(links[0]), "task")
    by_language = _dictionaries(folder)
    with safe_load.about(folder):  # made-up options can cause any error
        src, tgt, symbols, changes = plan_pair(folder, settings, list(by_language), languages)
    source, target = (by_language.get(code) or by_language.get("") for code in (src, tgt))
    if source is None or target is None:
        raise ConfigError(
            f"{folder} must have the dictionaries dict.{src}.txt and dict.{tgt}.txt, but has "
            f"{', '.join(file.name for file in by_language.values())}."
        )
    text, origin = _text(folder, path, (src, tgt))
    if not (home / layout.CHANGES).exists():
        for code, file in ((src, source), (tgt, target)):
            present = set(dictionaries.symbols(file))
            added = [f"{symbol} 1" for symbol in symbols if symbol not in present]
            lines = file.read_text(encoding="utf-8").removesuffix("\n")
            with files.atomic_write(home / f"dict.{code}.txt") as copy:
                copy.write("\n".join([lines, *added]) + "\n")
        subwords.load(text.subwords, text.files)  # refuses damaged subwords
        text.save(home)
        write_json(home / layout.CHANGES, changes)
    models = f"an ensemble of {len(links)} models" if len(links) > 1 else "one model"
    logger.warning(
        "%s has the layout of fairseq's published models: %s, %s to %s. Its text steps, taken from "
        "%s, are %s; options such as `--no-tokenize` and `--bpe-codes` override them.",
        *(folder, models, src, tgt, origin, text.describe().partition(": ")[2]),
    )
    return links


def _text(folder: Path, path: Path, languages: Sequence[str]) -> tuple[Pipeline, str]:
    """Return the steps from a model's text to tokens, and a phrase about their origin.

    If ``path`` or ``folder`` has the name of a model in :func:`hub_models`, the steps are those of
    this model, if known. Otherwise they follow from the files of subwords in ``folder``.
    """
    kind, used = _subwords(folder)
    moses, origin = kind in ("fastbpe", "subword-nmt"), "its files"
    name = _name(path) or _name(folder)
    entry = hub_models()[name] if name else {}
    if "bpe" in entry:
        moses, origin = entry["tokenizer"] == "moses", f"the name {name}"
        if kind != entry["bpe"].replace("_", "-"):
            raise ConfigError(
                f"{folder} has no subwords of the kind {entry['bpe']}, which {name} needs: "
                "put their file from its archive beside the model."
            )
    steps = {"tokenize": moses, "escape": moses, "aggressive": moses}
    src, tgt = languages
    return Pipeline(src, tgt, **steps, subwords=kind, files=tuple(used)), origin


def _name(path: Path) -> str | None:
    """Return the model in :func:`hub_models` that a folder or archive is named after, or None."""
    for name, entry in hub_models().items():
        archive = entry["path"].rpartition("/")[2]
        stem = next(archive.removesuffix(end) for end in ARCHIVES if archive.endswith(end))
        if path.name in (name, archive, stem):
            return name
    return None


def _subwords(folder: Path) -> tuple[str, list[Path]]:
    """Return the kind of a folder's subwords and their files; without files, "none" and []."""
    pair = [folder / "encoder.json", folder / "vocab.bpe"]
    if all(path.is_file() for path in pair):
        return "byte-level", pair
    models = sorted(folder.glob("*.model"))
    if len(models) == 1:
        return "sentencepiece", models
    for name in ("bpecodes", "code", "codes", "bpe.codes"):
        if (folder / name).is_file():
            return subwords.kind_of_merges(folder / name), [folder / name]
    return "none", []


# Models of many languages


def plan_pair(
    folder: Path,
    settings: Mapping[str, Any],
    with_dictionary: Sequence[str],
    languages: tuple[str | None, str | None],
) -> tuple[str, str, list[str], dict[str, Any]]:
    """Plan how a published model translates between two languages.

    Args:
        folder: the model's folder, with the lists of languages that ``settings`` name.
        settings: options of the model's task.
        with_dictionary: the languages that have their own dictionary, and "" if all share one.
        languages: source and target; None for the language in ``settings``.

    Returns:
        Source language; target language; symbols to add to the dictionaries; and a dict of the
        changes that ``storage`` makes to the checkpoint. Its keys are ``task`` and ``model``
        (dicts of new options), and ``weights`` (weights whose names do not begin with this prefix
        are dropped). The dict is empty if the model is not multilingual.
    """
    name = str(settings.get("task") or settings.get("_name") or "translation")
    if not name.startswith("translation") and name != PAIRS:
        raise CheckpointError(f"{folder} holds a model of the task {name}, not of translation.")
    if "pipeline_parallel" in str(settings.get("arch")) or settings.get("moe_freq"):
        raise CheckpointError(
            f"{folder} holds a mixture of experts, or a model in parts for several GPUs; neither "
            "is supported here."
        )
    trained = settings.get("source_lang"), settings.get("target_lang")
    if name == EPOCHS:
        codes = _languages(folder, settings)
    elif name == MBART:
        codes = _split(settings.get("langs"))
    elif name == PAIRS:
        codes = sorted({code for pair in _pairs(folder, settings) for code in pair.split("-")})
    else:
        codes = [code for code in with_dictionary if code]
    src, tgt = (code or default for code, default in zip(languages, trained, strict=True))
    multilingual = name in (EPOCHS, MBART, PAIRS)
    for option, value, code in zip(("--src", "--tgt"), languages, (src, tgt), strict=True):
        if multilingual or value is not None or code is None:
            _require_language(folder, option, code, codes)
        if not re.fullmatch(r"[\w-]{1,40}", str(code)):  # a code becomes part of a file's name
            raise CheckpointError(f"{folder} has {str(code)[:40]!r}, which is not a language code.")
    if not multilingual and None not in trained and (src, tgt) != trained:
        raise ConfigError(
            f"{folder} translates from {trained[0]} to {trained[1]} only, not from {src} to {tgt}; "
            "leave out `--src` and `--tgt`."
        )
    src, tgt, prefix = str(src), str(tgt), ""
    if not multilingual:
        return src, tgt, [], {}
    symbols: list[str] = []
    task: dict[str, Any]
    if name == EPOCHS:
        symbols, task = _tokens(folder, settings, codes, {"src": src, "tgt": tgt})
    elif name == MBART:
        symbols = [*(STYLES["mbart"].format(code) for code in codes), MASK]
        task = {f"{side}_suffix": STYLES["mbart"].format(code)
                for side, code in (("source", src), ("target", tgt))}  # fmt: skip
    else:
        if settings.get("encoder_langtok") or settings.get("decoder_langtok"):
            raise CheckpointError(
                f"{folder} has language tokens of the task {PAIRS}, unsupported here."
            )
        prefix, task = f"models.{src}-{tgt}.", {}
    task |= {"_name": "translation_ext", "source_lang": src, "target_lang": tgt}
    task |= {option: settings[option] for option in TASK_OPTIONS if option in settings}
    for option in ("left_pad_source", "left_pad_target"):
        task[option] = str(task.get(option, option == "left_pad_source")) == "True"
    arch = str(settings.get("arch") or "")
    model = {}
    # BART is a Transformer without its classifier; mBART-50 calls itself `denoising_large`.
    if arch.startswith(("mbart", "bart", "denoising")):
        model = {"arch": "transformer"}
    elif arch.startswith("multilingual_"):
        model = {"arch": arch.removeprefix("multilingual_")}
    return src, tgt, symbols, {"task": task, "model": model, "weights": prefix}


def _tokens(
    folder: Path, settings: Mapping[str, Any], codes: Sequence[str], pair: Mapping[str, str]
) -> tuple[list[str], dict[str, Any]]:
    """Return symbols and options for a model of the task ``translation_multi_simple_epoch``.

    The symbols to add to the dictionaries are the language tokens for all ``codes``, and perhaps a
    mask and tags for the origin of training data. The options are ``source_prefix`` and
    ``target_prefix`` of ``translation_ext``: language tokens, or "" on a side where the model was
    trained without a token. ``pair`` has the codes of both languages, as ``src`` and ``tgt``.
    ``settings`` are as in :func:`plan_pair`.
    """
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
        encoder, decoder = "src", "tgt"  # as in fairseq's own commands for these models
    kinds = _split(settings.get("langtoks_specs") or ["main"])
    if style is None or {encoder, decoder} - {"src", "tgt", None} or set(kinds) - {*SPECIFICATIONS}:
        raise CheckpointError(f"{folder} has language tokens of an unsupported kind.")
    symbols = [style.format(code + SPECIFICATIONS[kind]) for kind in kinds for code in codes]
    if style == STYLES["mbart"] or "mono_dae" in (settings.get("extra_data") or ()):
        symbols.append(MASK)
    if settings.get("add_data_source_prefix_tags"):
        symbols += DATA_TAGS
    return symbols, {
        "source_prefix": style.format(pair[encoder]) if encoder else "",
        "target_prefix": style.format(pair[decoder]) if decoder else "",
    }


def _languages(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """Return the languages of a model of the task ``translation_multi_simple_epoch``.

    Their order is that of their language tokens in the dictionaries. ``settings`` are the task's
    options, which may name a file in ``folder`` that lists the languages.
    """
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
    """Raise ConfigError if a language ``code`` is None or not one of the model's ``codes``.

    If ``codes`` is empty, any code is accepted. ``option`` is for the message.
    """
    if code in codes or (code is not None and not codes):
        return
    near = near_names(code, codes) if code else []
    near = near or [other for other in codes if code and other.startswith(code[:2])][:3]
    listed = ", ".join(codes[:6]) + (f" and {len(codes) - 6} more" if len(codes) > 6 else "")
    if code is None:
        raise ConfigError(f"`{option}` must be one of the languages of {folder}: {listed}.")
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {listed}."
    raise ConfigError(f"`{option} {code}` is not a language of {folder}; {hint}")
