"""Open a trained model of any format, to translate with it.

A model is a checkpoint, or a bundle: a folder with all that the model needs
(:mod:`fairseq_ext.checkpoints.bundle`). The engine runs bundles with a ``program.json``, without
torch and fairseq. All other models need both libraries; :mod:`fairseq_ext.generation.on_engine`
chooses between the engine and fairseq's generator for them.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fairseq_ext.checkpoints import bundle, layout, published
from fairseq_ext.decoding.engine_translator import EngineTranslator
from fairseq_ext.decoding.search import Search
from fairseq_ext.engine import DEFAULT, NATIVE
from fairseq_ext.engine.engine_model import SearchDefaults, ensemble
from fairseq_ext.model import find_model, program_file
from fairseq_ext.text import pipeline
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import CheckpointError, ConfigError
from fairseq_ext.utils.files import FileVersions

if TYPE_CHECKING:
    from fairseq_ext.decoding.translator import Translator

Translates: TypeAlias = "Translator | EngineTranslator"
"""A translator of lines of tokens, which several threads may call."""
MakeSearch = Callable[[SearchDefaults], Search]
Languages = tuple[str | None, str | None]  # source and target; None: the training's


class Opened(NamedTuple):
    """A model that is ready to translate, with the folders and versions of its files."""

    translator: Translates
    folders: Sequence[Path]  # where its text.json may be; the first that has one is used
    versions: FileVersions  # versions of the model's files, before they were read

    def text(self) -> Pipeline:
        """Return the text pipeline saved with the model, or an empty pipeline if there is none."""
        languages = (self.translator.src, self.translator.tgt)
        return pipeline.find_towards(self.folders, *languages) or Pipeline(*languages)


def open_model(
    paths: Sequence[Path],
    data: Path | None,
    languages: Languages,
    make_search: MakeSearch,
    threads: int | None = None,
) -> Opened:
    """Open a model of any format, to translate with it.

    Args:
        paths: bundles or checkpoints, as :func:`models_of` finds them; several are an ensemble.
        data: folder with the dictionaries; None for the model's own, or those of its training.
            Bundles that the engine runs have their own, so they must have None.
        languages: source and target; None for the model's own.
        make_search: function from the model's default search options to the options to use.
        threads: number of threads; None for the number set in the environment.

    Raises:
        CheckpointError: a file is missing, or cannot be used.
        ConfigError: a path names no model, options exclude each other, or models do not match.
        DataError: a ``text.json`` of an ensemble cannot be used.
    """
    paths = [*map(find_model.require, paths)]
    versions = FileVersions(chain(*map(bundle.files_of, paths)))
    search = make_search(_defaults(paths))
    homes = [*map(bundle.home, paths)]
    in_engine = search.engine in NATIVE and not search.fp16
    if in_engine and all(map(bundle.has_program, paths)):  # without torch and fairseq
        if data is not None:
            raise ConfigError(
                f"the folder {data} has no effect on bundles, which have dictionaries; leave it "
                "out."
            )
        numbers = None if search.engine == DEFAULT else NATIVE[search.engine]
        model = ensemble([program_file.read(path, numbers) for path in paths])
        trained = (model.src, model.tgt)
        wished = (languages[0] or trained[0], languages[1] or trained[1])
        if wished != trained:
            raise ConfigError(
                f"`--src` and `--tgt` must be {' and '.join(trained)} for {model.path}, but are "
                f"{wished[0]} and {wished[1]}."
            )
        translator: Translates = EngineTranslator(model, search, threads)
        folders = homes
    else:
        logging.basicConfig(level=logging.WARNING)  # as in cli.py, for callers in Python
        from fairseq_ext import register

        register()
        import torch

        from fairseq_ext.decoding.translator import Translator

        if threads is not None:
            torch.set_num_threads(threads)
        data = data or data_of(paths[0])
        translator, folders = Translator(data, paths, *languages, search), [*homes, data]
    if len(paths) > 1:
        _require_same_text({*homes}, translator.src, translator.tgt)
    return Opened(translator, folders, versions)


def _require_same_text(folders: Iterable[Path], src: str, tgt: str) -> None:
    """Raise ConfigError if two models of an ensemble have a ``text.json`` with different steps."""
    texts = [(folder, pipeline.find_towards([folder], src, tgt)) for folder in sorted(folders)]
    existing = [(folder, text) for folder, text in texts if text is not None]
    for (first, text), (second, other) in pairwise(existing):
        if not pipeline.same(text, other):
            raise ConfigError(
                f"{first} and {second} cannot form an ensemble: their text.json turn text into "
                "different tokens. Leave one of them out."
            )


def _defaults(paths: Sequence[Path]) -> SearchDefaults:
    """Return the search defaults of a bundle or of an ensemble's first bundle; {} for others."""
    if not bundle.is_bundle(paths[0]) or not all(map(bundle.has_program, paths[1:])):
        return {}
    defaults = bundle.read(paths[0]).search
    try:
        Search(**defaults)  # checked here, so that an error names the file
    except ConfigError as error:
        raise CheckpointError(
            f"{paths[0]} has defaults for a search that is not possible: {error}"
        ) from None
    return defaults


def models_of(path: Path, src: str | None = None, tgt: str | None = None) -> list[Path]:
    """Return the models that a path names: one, or an ensemble that fairseq's authors published.

    The folder of a training stands for its averaged checkpoint, or else its best, or else its last.
    The name of a bundle stands for the bundle's folder. Any other path stands for itself. ``src``
    and ``tgt`` choose the languages of multilingual published models; None for those of the
    training. Raise ConfigError for a folder without a model.
    """
    if links := published.prepare(path, src, tgt):
        return links
    path = find_model.resolved(path)
    if not path.is_dir() or bundle.is_bundle(path):
        return [path]
    for name in published.RUN:
        if (path / name).is_file():
            return [path / name]
    names = (bundle.MANIFEST, *published.RUN)
    files = (
        file for name in names for depth in ("*", "*/*") for file in path.glob(f"{depth}/{name}")
    )
    folders = sorted({str(file.parent.relative_to(path)) for file in files})
    hint = f", but its {' and '.join(folders)} have a model; give one of them" if folders else ""
    if checkpoints := sorted(file.name for file in path.glob("*.pt"))[:5]:
        hint = f", but has {', '.join(checkpoints)}; give one of them"
    raise ConfigError(
        f"{path} is a folder without a model: it has no {', '.join(published.RUN)}{hint}."
    )


def model_of(path: Path, src: str | None = None, tgt: str | None = None) -> Path:
    """Return the model that a path names; raise ConfigError if it names an ensemble or none."""
    first, *others = models_of(path, src, tgt)
    if others:
        raise ConfigError(
            f"{path} has {len(others) + 1} models in an ensemble, but one is needed here: give "
            f"one of its files, such as {path / first.name if path.is_dir() else first}."
        )
    return first


def data_of(path: Path) -> Path:
    """Find the folder with the dictionaries of a bundle, or of a checkpoint's training.

    For a checkpoint, look in its own folder, then in the data folder that the checkpoint names. If
    this name is a relative path, try it from the checkpoint's folder, from the folder above, from
    the one above that, and from the working folder. Raise ConfigError if no folder has
    dictionaries.
    """
    if bundle.is_bundle(path):
        return bundle.home(path)
    find_model.require(path)  # before the next line, which fails without torch
    from fairseq_ext.checkpoints import storage

    folders = [path.parent]
    task = layout.options(storage.peek(path), "task")
    trained = str(task.get("data") or "").split(":")[0]
    if trained:
        near = path.absolute().parents[:3]
        folders += [*(folder / trained for folder in near), Path(trained)]
    for folder in folders:
        try:
            if any(folder.glob("dict.*.txt")):
                return folder
        except (OSError, ValueError):  # the checkpoint's text is not a valid path
            continue
    raise ConfigError(
        "`--data` must be the folder of fairseq-preprocess (`translate`: DATA; `demo`: also "
        f"`,data=DIR`), but is missing, and the folder that {path} was trained with is not here. "
        "Only bundles work without it."
    )
