"""Bundles on the Hugging Face Hub, by names such as ``org/name`` and ``org/name@revision``.

A name is looked up once in a process, and stands for one commit from then on. What is downloaded
stays in the Hub's own cache. Its servers are those of ``HF_ENDPOINT``.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.checkpoints import bundle
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EnvironmentProblem,
    FairseqExtError,
)

LIBRARY = "huggingface_hub"
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
_NAME = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w./-]{1,200}))?")
_COMMIT = re.compile("[0-9a-f]{40}")
_OF_FILES = (".pt", ".pth", ".bin", ".safetensors", ".zip", ".zst", ".json", ".txt")

logger = logging.getLogger(__name__)


class Name(NamedTuple):
    """A repository of models on the Hub, and a branch, tag or commit of it."""

    repo: str
    revision: str | None


def name(path: str | Path) -> Name | None:
    """The name on the Hub that a path is; None for what is, or can only be, a path.

    A path whose first folder is here is one, so that mistyped paths are not sent to the Hub.
    """
    found = _NAME.fullmatch(str(path))
    if found is None or found[1].endswith(_OF_FILES):
        return None
    if os.path.lexists(path) or Path(found[1].partition("/")[0]).exists():
        return None
    return Name(found[1], found[2])


def fetched(path: Path) -> Path:
    """Return the folder of a bundle on the Hub, checked; return any other path unchanged.

    Raises:
        CheckpointError: there is no such bundle, or it is damaged.
        EnvironmentProblem: the Hub's library is missing, or the Hub cannot be reached.
    """
    found = name(path)
    return path if found is None else _fetch(found)


@functools.cache
def _fetch(wanted: Name) -> Path:
    if importlib.util.find_spec(LIBRARY) is None:
        raise EnvironmentProblem(
            f"{wanted.repo} is not here; to look for it on the Hugging Face Hub, "
            f"{extras.missing(LIBRARY)}"
        )
    with _one_line(wanted):
        folder = _download(wanted, again=False)
        try:
            bundle.read(folder).check()
        except CheckpointError:  # a copy can be damaged where it is kept
            folder = _download(Name(wanted.repo, folder.name), again=True)
            bundle.read(folder).check()
    if not _COMMIT.fullmatch(wanted.revision or ""):
        logger.warning(
            "%s is at commit %s; `%s@%s` stays with it.",
            *(wanted.repo, folder.name, wanted.repo, folder.name),
        )
    return folder


def _download(wanted: Name, *, again: bool) -> Path:
    """All files that a bundle lists, of one commit; its folder in the cache."""
    from huggingface_hub import hf_hub_download

    options = {"repo_id": wanted.repo, "force_download": again}
    found = hf_hub_download(filename=bundle.MANIFEST, revision=wanted.revision, **options)
    folder = Path(found).parent  # its name is the commit
    for file in bundle.read(folder).files:
        hf_hub_download(filename=file, revision=folder.name, **options)
    return folder


def push(path: Path, repo: str, *, private: bool = False, message: str | None = None) -> str:
    """Put a bundle on the Hub, in one commit, which also deletes files of the previous bundle.

    Args:
        path: of the bundle, which is checked first.
        repo: ``org/name``; made if it is not there.
        private: a new one is not shown to others.
        message: of the commit.

    Returns:
        The commit.

    Raises:
        CheckpointError: the bundle is damaged.
        ConfigError: the path is not a bundle, or the name is not valid.
        EnvironmentProblem: the Hub's library is missing, or the Hub refuses or cannot be reached.
    """
    if not _NAME.fullmatch(repo) or "@" in repo:
        raise ConfigError(f"the name on the Hub must be as org/name, but is `{repo}`.")
    if not bundle.is_bundle(path):
        raise ConfigError(f"{path} is not a bundle; make one with `fairseq-ext bundle`.")
    found = bundle.read(path)
    found.check()
    extras.need(LIBRARY)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    card = [one for one in ("README.md",) if (found.folder / one).is_file()]
    files = [*found.files, *card, bundle.MANIFEST]
    with _one_line(Name(repo, None)):
        api = HfApi()
        api.create_repo(repo, private=private or None, exist_ok=True)
        added = [CommitOperationAdd(one, str((found.folder / one).resolve())) for one in files]
        title = message or f"{found.architecture}, {found.src} to {found.tgt}, {found.numbers}"
        gone = [CommitOperationDelete(one) for one in _stale(repo, files)]
        return api.create_commit(repo, [*added, *gone], commit_message=title).oid


def _stale(repo: str, kept: Collection[str]) -> list[str]:
    """Return the files of the bundle on the Hub that are not in ``kept``.

    Files that others added are left out.
    """
    from huggingface_hub import HfApi, errors, hf_hub_download

    try:
        found = bundle.read(Path(hf_hub_download(repo, bundle.MANIFEST)).parent)
    except errors.LocalEntryNotFoundError:  # the Hub cannot be reached
        raise
    except (errors.EntryNotFoundError, errors.RevisionNotFoundError, CheckpointError, DataError):
        return []  # an empty repository, or not a bundle of ours
    api = HfApi()
    return [one for one in found.files if one not in kept and api.file_exists(repo, one)]


@contextmanager
def _one_line(wanted: Name) -> Iterator[None]:
    """Turn the library's errors into ours.

    Raises:
        CheckpointError, ConfigError, EnvironmentProblem: see :func:`fetched`.
    """
    from huggingface_hub import constants, errors

    where = f"{wanted.repo} on {constants.ENDPOINT}"
    try:
        yield
    except FairseqExtError as error:
        kind = CheckpointError if isinstance(error, CheckpointError | DataError) else type(error)
        raise kind(f"{where}: {error}") from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(f"{where} has no revision `{wanted.revision}`.") from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"{wanted.repo} is not here, and no model on {constants.ENDPOINT} that you may use; "
            f"check the name, or {LOGIN}."
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise EnvironmentProblem(
            f"{wanted.repo} is not here, and {constants.ENDPOINT} cannot be reached; check the "
            "name, or the network and HF_HUB_OFFLINE."
        ) from None
    except errors.EntryNotFoundError:
        raise CheckpointError(
            f"{where} is not a bundle, or not all of one; `fairseq-ext push` puts bundles there."
        ) from None
    except Exception as error:  # of the library, and of the one that it asks the network with
        status = getattr(getattr(error, "response", None), "status_code", None)
        cure = f" ({LOGIN})" if status in (401, 403) else ""
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise EnvironmentProblem(f"{where} cannot be used{cure}: {reason:.200}") from error
