"""A trained model, whatever it is kept in, ready to translate.

A model for the engine needs neither torch nor fairseq; every other one is left to them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.checkpoints import bundle, find_model
from fairseq_ext.decoding.search import Search, Translates
from fairseq_ext.engine import DEFAULT, ENGINES
from fairseq_ext.engine.files import is_engine_model, read, voting
from fairseq_ext.text import pipeline
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import CheckpointError, ConfigError

IN_A_RUN = ("average.pt", "checkpoint_best.pt", "checkpoint_last.pt")
"""Checkpoints of a run's folder; the first that is there is its model."""

MakeSearch = Callable[[Mapping[str, int | float]], Search]


class Opened(NamedTuple):
    """A model.

    Attributes:
        translator: of tokens.
        search: how it searches unless a call says otherwise.
        folders: where its ``text.json`` may be; the first one counts.
    """

    translator: Translates
    search: Search
    folders: Sequence[Path]

    def text(self) -> Pipeline:
        """The text pipeline saved with the model; an empty pipeline if it saved none.

        Raises:
            DataError: it cannot be used.
        """
        languages = (self.translator.src, self.translator.tgt)
        saved = pipeline.find(self.folders)
        return (saved and saved.towards(*languages)) or Pipeline(*languages)


@contextlib.contextmanager
def opened(
    paths: Sequence[Path],
    data: Path | None,
    languages: tuple[str | None, str | None],
    make_search: MakeSearch,
    threads: int | None = None,
) -> Iterator[Opened]:
    """A model, and for as long as the block takes the folders of its text.

    Args:
        paths: a model for the engine, or several that vote; or a checkpoint, bundle, packed model,
            folder of a run or name on the Hub, or several of these.
        data: folder with the dictionaries; None for the model's own, or those of its training.
        languages: source and target; None for the model's own.
        make_search: from the model's own defaults to how it searches unless a call says otherwise.
        threads: that share out the work; None for as many as the environment says. For all but
            models for the engine this is a setting of the process.

    Raises:
        FairseqExtError: it cannot be loaded, or options do not go with it.
    """
    paths = [in_run(path) for path in paths]
    if len(paths) == 1 and bundle.is_bundle(paths[0]):
        make_search, paths = _of_bundle(paths[0], make_search)
    if any(map(is_engine_model, paths)):
        if not all(map(is_engine_model, paths)):
            for path in paths:
                files.require_file(path, "model")
            raise ConfigError("`--path` must name models for the engine alone, or checkpoints.")
        with _for_the_engine(paths, languages, make_search, threads) as found:
            yield found
    else:
        with _for_fairseq(paths, data, languages, make_search({}), threads) as found:
            yield found


def _of_bundle(path: Path, make_search: MakeSearch) -> tuple[MakeSearch, list[Path]]:
    """The bundle's search settings and the file to load.

    That is its engine model, or the packed model that holds its 1-bit weights; otherwise the bundle
    itself.
    """
    found = bundle.read(path)
    search = make_search(_possible(found.search, path))
    own = bundle.WEIGHTS if found.is_packed else None
    if bundle.ENGINE in found.files and search.engine == DEFAULT:
        own = bundle.ENGINE
    if own is not None:
        found.check()
        path = found.folder / own
    return (lambda own: search), [path]


def _possible(defaults: Mapping[str, int | float], path: Path) -> Mapping[str, int | float]:
    """The defaults of a model's file, checked alone, so that an error names the file."""
    try:
        Search(**defaults).check()
    except ConfigError as error:
        raise CheckpointError(
            f"{path} has defaults for a search that is not possible: {error}"
        ) from None
    return defaults


def in_run(path: Path) -> Path:
    """The model of a run's folder, or the bundle that a name stands for; a file is itself.

    Raises:
        CheckpointError, EnvironmentProblem: it cannot be had from the Hub.
        ConfigError: the folder has none of :data:`IN_A_RUN`.
    """
    path = find_model.resolved(path)
    if not path.is_dir() or bundle.is_bundle(path):
        return path
    for name in IN_A_RUN:
        if (path / name).is_file():
            return path / name
    raise ConfigError(f"{path} is a folder without a model: it has no {', '.join(IN_A_RUN)}.")


@contextlib.contextmanager
def _for_the_engine(
    paths: Sequence[Path],
    languages: tuple[str | None, str | None],
    make_search: MakeSearch,
    threads: int | None,
) -> Iterator[Opened]:
    """Models that have all they need; neither torch nor fairseq is imported."""
    from fairseq_ext.decoding.engine_translator import EngineTranslator

    models = [read(path) for path in paths]
    model = voting(models)
    own = (model.settings.src, model.settings.tgt)
    if tuple(given or mine for given, mine in zip(languages, own, strict=True)) != own:
        raise ConfigError(
            f"`--src` and `--tgt` must be {' and '.join(own)} for {model.path}, but are "
            f"{languages[0]} and {languages[1]}."
        )
    search = make_search(_possible(model.settings.search, model.path))
    for one in models:
        numbers = one.settings.numbers
        if search.engine != DEFAULT and ENGINES.get(search.engine) != numbers:
            raise ConfigError(
                f"`--engine {search.engine}` does not go with {one.path}, which is a model for the "
                f"engine in {numbers}; leave it out."
            )
    translator = EngineTranslator(model, search, threads)
    with model.text_folder() as folder:
        yield Opened(translator, search, (folder,))


@contextlib.contextmanager
def _for_fairseq(
    paths: Sequence[Path],
    data: Path | None,
    languages: tuple[str | None, str | None],
    search: Search,
    threads: int | None,
) -> Iterator[Opened]:
    """Checkpoints with the dictionaries of the data."""
    logging.basicConfig(level=logging.WARNING)  # as in cli.py, for callers in Python
    from fairseq_ext import register

    register()
    import torch

    from fairseq_ext.decoding.translator import Translator
    from fairseq_ext.utils.error_messages import one_message

    if threads is not None:
        torch.set_num_threads(threads)
    folder = data or data_of(paths[0])
    with one_message():
        translator = Translator(folder, paths, *languages, search)
        yield Opened(translator, search, (*map(bundle.home, paths), folder))


def data_of(path: Path) -> Path:
    """The folder with the dictionaries that a checkpoint was trained with.

    That is its own folder, if the dictionaries are there, or else the one it was trained on. Where
    fairseq-train was told a relative path, its working folder is not known: it may be that of the
    checkpoint or one of the two above, as the recipes have it, or else this process's.

    Raises:
        CheckpointError: the file cannot be read.
        ConfigError: there are no dictionaries in either.
    """
    from fairseq_ext.checkpoints import layout, storage

    if not bundle.is_bundle(path):
        files.require_file(path, "checkpoint")
    folders = [bundle.home(path)]
    if storage.is_checkpoint(path):
        told = layout.options(storage.peek(path), "task").get("data")
        trained = str(told or "").split(":")[0]
        if trained:
            near = path.absolute().parents[:3]
            folders += [*(folder / trained for folder in near), Path(trained)]
    for folder in folders:
        try:
            if any(folder.glob("dict.*.txt")):
                return folder
        except (OSError, ValueError):  # what the checkpoint names is no path at all
            continue
    where = "was trained with one that is not here"
    if path.suffix == ".safetensors":
        where = "is a packed model, which does not say where its data are"
    raise ConfigError(
        f"DATA must be the folder of fairseq-preprocess, but is missing, and {path} {where}. Give "
        "it (`bundle` and `pack`: `--data`); only a bundle or a model of `fairseq-ext pack "
        "--engine` needs none."
    )
