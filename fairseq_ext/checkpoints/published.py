"""Use trained models in the layouts in which fairseq's authors publish them.

An archive or folder has ``model.pt`` or ``model1.pt`` … (an ensemble), dictionaries and the files
of the subwords, but does not say how text becomes tokens. :func:`prepare` makes a folder for it in
the user's cache that looks like a run's folder. It has links to the checkpoints, dictionaries,
``text.json``, and :data:`MARK` with task options that replace the checkpoint's options.
Nothing in a model's folder is run, and nothing is written into it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.checkpoints import bundle, dictionaries, layout
from fairseq_ext.checkpoints import languages as multilingual
from fairseq_ext.text import pipeline, subwords
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils import files
from fairseq_ext.utils.archives import unpacked_in_cache
from fairseq_ext.utils.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentProblem,
    FairseqExtError,
)

if TYPE_CHECKING:
    from torch import Tensor

MARK = "published.json"
"""File in each folder that :func:`prepare` has made: the task's options, if they change."""
MIRROR = "FAIRSEQ_EXT_PUBLISHED"
"""Environment variable with a folder or address that replaces the server of the archives."""
RUN = ("average.pt", "checkpoint_best.pt", "checkpoint_last.pt")
"""Checkpoints in the folder of a run; the first that exists is its model."""
ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar", ".zip")
CACHE = "published"  # a folder in the user's cache
_VOTERS = re.compile(r"(\w+\.)?model\d*\.pt")
_DICTIONARY = re.compile(r"dict\.([\w-]+)\.txt")

HUB = ("transformer.", "lightconv.", "dynamicconv.", "conv.")
"""Prefixes of the names of :func:`hub_models`; anything else is a path, and needs no fairseq."""
OUTPUT = "decoder.output_projection.weight"

logger = logging.getLogger(__name__)


@functools.cache
def hub_models() -> dict[str, dict[str, str]]:
    """Return fairseq's translation models by name: their ``path`` (URL), ``tokenizer``, ``bpe``."""
    # otherwise the import would advise to install a package for speech
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
    return (Path(path).parent / MARK).is_file()


def prepare(path: Path, src: str | None = None, tgt: str | None = None) -> list[Path]:
    """Prepare a published model and return its checkpoints, or [] if it is not a published model.

    ``path`` is an archive, a folder, or one of the checkpoints in it. A multilingual model needs
    languages; None stands for the training's.
    """
    if bundle.is_bundle(path):
        return []
    folder = path.parent if path.is_file() else path
    if path.is_file() and path.name.endswith(ARCHIVES):
        folder = unpacked_in_cache(path, f"{CACHE}/archives", _model_in)
    voters = _voters(folder)
    if path.is_file() and path.parent == folder:
        voters = [path] if path in voters else []
    if not voters or (folder / pipeline.FILE).exists():
        return []
    try:
        return _prepared(folder, voters, path, (src, tgt))
    except OSError as error:
        raise EnvironmentProblem(files.explain(error)) from error


def resolved(path: Path) -> Path:
    """Download the archive behind a name of :func:`hub_models`; return other paths unchanged.

    The archive stays in the cache. :data:`MIRROR` names a folder or address to take it from.
    """
    name = str(path)
    if path.exists() or not name.startswith(HUB) or name not in hub_models():
        return path
    from fairseq_ext.corpora import downloads

    cache = files.cache_folder() / CACHE / "downloads"
    try:
        return downloads.fetch(hub_models()[name]["path"], cache, os.environ.get(MIRROR) or None)
    except OSError as error:
        raise EnvironmentProblem(files.explain(error)) from error


def _voters(folder: Path) -> list[Path]:
    """Return the checkpoints in the folder of a published model, or [] for any other folder."""
    if not folder.is_dir() or (folder / "bundle.json").exists() or not _dictionaries(folder):
        return []
    checkpoints = sorted(folder.glob("*.pt"))
    if any(path.name in RUN for path in checkpoints):
        return []
    voters = [path for path in checkpoints if _VOTERS.fullmatch(path.name)]
    return voters or checkpoints[: len(checkpoints) == 1]


def _dictionaries(folder: Path) -> dict[str, Path]:
    """Return the dictionaries of a folder by language; "" stands for all languages."""
    named = {match[1]: path for path in sorted(folder.glob("dict.*.txt"))
             if (match := _DICTIONARY.fullmatch(path.name))}  # fmt: skip
    shared = [folder / name for name in ("dict.txt", "dictionary.txt")]
    shared += sorted(folder.glob("model_dict.*.txt"))
    for path in filter(Path.is_file, shared):
        named = named or {"": path}
    return named


def _model_in(folder: Path) -> Path:
    """Return the folder of a published model in an unpacked archive."""
    folders = [folder, *(entry for entry in sorted(folder.iterdir()) if entry.is_dir())]
    for candidate in folders:
        if _voters(candidate):
            return candidate
    raise CheckpointError("it has no model.pt with its dictionaries.")


def _prepared(
    folder: Path, voters: Sequence[Path], path: Path, languages: tuple[str | None, str | None]
) -> list[Path]:
    """Make a model's folder in the cache unless it exists; return the links to its checkpoints."""
    content = [(entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
               for entry in sorted(folder.iterdir()) if entry.is_file()]  # fmt: skip
    names = [voter.name for voter in voters]
    key = repr((str(folder.absolute()), names, path.name, languages, content))
    home = files.cache_folder() / CACHE / hashlib.sha256(key.encode()).hexdigest()[:24]
    home.mkdir(parents=True, exist_ok=True)
    links = [home / name for name in names]
    for link, voter in zip(links, voters, strict=True):
        with suppress(FileExistsError):
            link.symlink_to(voter.absolute())
    # Imported here because storage imports this module, and because bundles do not need torch.
    from fairseq_ext.checkpoints import safe_load, storage

    settings = layout.options(storage.peek(links[0]), "task")
    by_language = _dictionaries(folder)
    try:
        plan = multilingual.plan(folder, settings, list(by_language), languages)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        if isinstance(error, FairseqExtError):
            raise
        raise CheckpointError(
            f"{folder} has language options that no model has ({type(error).__name__}). "
            f"{safe_load.ADVICE}"
        ) from error
    source, target = (by_language.get(code) or by_language.get("") for code in (plan.src, plan.tgt))
    if source is None or target is None:
        raise ConfigError(
            f"{folder} must have the dictionaries dict.{plan.src}.txt and dict.{plan.tgt}.txt, but "
            f"has {', '.join(file.name for file in by_language.values())}."
        )
    text, origin = _text(folder, path, (plan.src, plan.tgt))
    if not (home / MARK).exists():
        for code, file in ((plan.src, source), (plan.tgt, target)):
            symbols = set(dictionaries.symbols(file))
            added = [symbol for symbol in plan.symbols if symbol not in symbols]
            lines = file.read_text(encoding="utf-8").removesuffix("\n")
            with files.atomic_write(home / f"dict.{code}.txt") as copy:
                copy.write("\n".join([lines, *(f"{symbol} 1" for symbol in added)]) + "\n")
        if text.subwords != "none":
            subwords.load(text.subwords, text.files)
        text.save(home)
        changes = {"task": plan.task, "model": plan.model, "weights": plan.weights}
        with files.atomic_write(home / MARK) as mark:
            mark.write(json.dumps(changes if plan.task else {}))
    models = f"an ensemble of {len(links)} models" if len(links) > 1 else "one model"
    logger.warning(
        "%s has the layout of fairseq's published models: %s, %s to %s. Its text steps are, by %s: "
        "%s; options such as `--no-tokenize` and `--bpe-codes` override them.",
        *(folder, models, plan.src, plan.tgt, origin, text.describe().partition(": ")[2]),
    )
    return links


def _text(folder: Path, path: Path, languages: Sequence[str]) -> tuple[Pipeline, str]:
    """Return the text steps of a published model, and the source that they were inferred from."""
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
    """Return the name in :func:`hub_models` of the model whose folder or archive this is."""
    for name, entry in hub_models().items():
        archive = entry["path"].rpartition("/")[2]
        stem = next(archive.removesuffix(end) for end in ARCHIVES if archive.endswith(end))
        if path.name in (name, archive, stem):
            return name
    return None


def _subwords(folder: Path) -> tuple[str, list[Path]]:
    """Find the subwords of a folder: their kind and their files."""
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


def adapted(checkpoint: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Replace a checkpoint's task options with those that :func:`prepare` stored in its folder."""
    mark = Path(path).parent / MARK
    if not os.path.isfile(mark):  # noqa: PTH113  # the text need not be a valid path
        return dict(checkpoint)
    changes = json.loads(mark.read_text(encoding="utf-8"))
    changed = dict(checkpoint)
    if changes:
        changed = layout.with_options(checkpoint, changes["task"], changes["model"])
    prefix = changes.get("weights")
    if prefix and "model" in changed:
        changed["model"] = {
            name.removeprefix(prefix): weight
            for name, weight in changed["model"].items()
            if name.startswith(prefix)
        }
    if layout.architecture(changed).startswith("lightconv") and "model" in changed:
        changed["model"] = _renamed(changed["model"])
    return changed


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the weights of a LightConv model of 2019 the names that today's fairseq expects."""
    renamed = {OUTPUT if name == "decoder.embed_out" else name: w for name, w in weights.items()}
    if "decoder.embed_tokens.weight" in renamed:
        renamed.setdefault(OUTPUT, renamed["decoder.embed_tokens.weight"])
    for name, weight in weights.items():
        if name.endswith(".conv.weight_linear.weight"):  # unused, but fairseq wants it
            bias = name.replace("weight_linear.weight", "conv_bias")
            renamed.setdefault(bias, weight.new_zeros(1, 1, weight.shape[1]))
    return renamed
