"""Find models by name: bundles that come with the plugin, and bundles on the Hugging Face Hub.

Bundles that come with the plugin (*shipped* bundles) are in ``fairseq_ext/shipped``. A name on the
Hub, such as ``org/name@revision``, is looked up once in a process, and then always stands for the
same commit. Downloads stay in huggingface_hub's cache. ``HF_ENDPOINT`` can name another server.
"""

import functools
import importlib.util
import logging
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairseq_ext.checkpoints import bundle
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EnvironmentProblem,
    FairseqExtError,
)

SHIPPED = Path(__file__).resolve().parents[1] / "shipped"
LIBRARY = "huggingface_hub"
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
_NAME = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w./-]{1,200}))?")
_COMMIT = re.compile("[0-9a-f]{40}")
_OF_FILES = (".pt", ".pth", ".bin", ".safetensors", ".zip", ".zst", ".json", ".txt")

logger = logging.getLogger(__name__)


def shipped() -> list[str]:
    """List the names of the shipped bundles, in alphabetical order."""
    return sorted(path.name for path in SHIPPED.glob("*") if bundle.is_bundle(path))


def resolved(path: Path) -> Path:
    """Return the folder of a bundle that is shipped, or fetched from the Hub and checked.

    If ``path`` is not the name of such a bundle, return it unchanged, even if it does not exist.

    Raises:
        CheckpointError: the Hub has no such bundle, or the bundle is damaged.
        EnvironmentProblem: the Hub cannot be reached.
    """
    if not path.exists() and str(path) == path.name and path.name in shipped():
        return SHIPPED / path.name
    repo_and_revision = hub_name(path)
    return path if repo_and_revision is None else _fetch(*repo_and_revision)


def require(path: Path) -> Path:
    """Return ``path`` if it exists; else raise a CheckpointError that names the shipped models."""
    if not path.exists():
        if all(Path(part).exists() for part in str(path).split(":")):  # fairseq's --path a.pt:b.pt
            raise CheckpointError(f"{path} does not exist; separate models by spaces, not colons.")
        names = ", ".join(shipped()) or "none"
        raise CheckpointError(f"{path} does not exist; the plugin's own models are {names}.")
    return path


def existing_bundle(path: Path, participle: str) -> Path:
    """Return the folder or archive of the bundle that a name or path stands for.

    ``participle`` completes the message “only bundles are …”, such as ``trimmed``. Raise
    CheckpointError if nothing is at this path, and ConfigError if it is no bundle.
    """
    path = require(resolved(path))
    if not bundle.is_bundle(path):
        raise ConfigError(
            f"{path} is not a bundle; only bundles are {participle}. `fairseq-ext bundle` makes "
            "one."
        )
    return path


# ---- the Hub -------------------------------------------------------------------------------------


def hub_name(path: str | Path) -> tuple[str, str | None] | None:
    """Split a name on the Hub into repository and revision, or return None for any other path.

    The revision is None in a name without ``@``. ``a/b`` is not taken for a name on the Hub if the
    folder ``a`` exists, or if ``b`` ends like the name of a file. These are usually mistyped paths,
    which should not be sent to the Hub.
    """
    match = _NAME.fullmatch(str(path))
    if match is None or match[1].endswith(_OF_FILES):
        return None
    if os.path.lexists(path) or Path(match[1].partition("/")[0]).exists():
        return None
    return match[1], match[2]


@functools.cache
def _fetch(repo: str, revision: str | None) -> Path:
    if importlib.util.find_spec(LIBRARY) is None:
        raise EnvironmentProblem(
            f"{repo} is not here; to look for it on the Hugging Face Hub, {extras.missing(LIBRARY)}"
        )
    with _one_line(f"{repo}@{revision}" if revision else repo):
        folder = _download(repo, revision)
        try:
            bundle.read(folder).check()
        except CheckpointError as error:
            cure = f"To download it anew, delete the folder {folder.parents[1]}."
            raise CheckpointError(f"{error} {cure}") from None
    if not _COMMIT.fullmatch(revision or ""):
        commit = folder.name
        logger.warning("%s is at commit %s; `%s@%s` always loads it.", repo, commit, repo, commit)
    return folder


def _download(repo: str, revision: str | None) -> Path:
    """Download a bundle's files, all from the same commit; return their folder in the cache.

    A commit that is in the cache is not looked up on the Hub.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    def folder_of(only_cached: bool) -> Path:
        cache = {"local_files_only": only_cached}
        path = hf_hub_download(repo, bundle.MANIFEST, revision=revision, **cache)
        folder = Path(path).parent  # its name is the commit
        for file in bundle.read(folder).files:
            hf_hub_download(repo, file, revision=folder.name, **cache)
        return folder

    if _COMMIT.fullmatch(revision or ""):
        with suppress(errors.LocalEntryNotFoundError):
            return folder_of(only_cached=True)
    is_reachable = True
    try:  # one attempt; `hf_hub_download` would try for half a minute
        get_hf_file_metadata(hf_hub_url(repo, bundle.MANIFEST, revision=revision))
    except errors.HfHubHTTPError:
        pass  # the next call reports it
    except Exception:  # of the network library, or because of HF_HUB_OFFLINE
        is_reachable = False
    return folder_of(only_cached=not is_reachable)


def push(path: Path, repo: str, *, private: bool = False, message: str | None = None) -> str:
    """Put a bundle on the Hub by a single commit; return the identifier of the commit.

    The commit also deletes files of the repository's previous bundle. ``private`` hides a new
    repository from other people. The default ``message`` describes the model.

    Raises:
        CheckpointError: the bundle does not exist or is damaged.
        ConfigError: ``path`` is not a bundle, or ``repo`` is not of the form ``org/name``.
        EnvironmentProblem: the Hub cannot be reached or refuses the commit.
    """
    if not _NAME.fullmatch(repo) or "@" in repo:
        raise ConfigError(f"the name on the Hub must be of the form org/name, but is `{repo}`.")
    manifest = bundle.read(existing_bundle(path, "pushed"))
    manifest.check()
    extras.need(LIBRARY)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    files = [*manifest.files, bundle.MANIFEST]
    if (manifest.folder / "README.md").is_file():
        files.append("README.md")
    title = f"{manifest.architecture}, {manifest.src} to {manifest.tgt}, {manifest.numbers}"
    with _one_line(repo):
        api = HfApi()
        api.create_repo(repo, private=private or None, exist_ok=True)
        changes: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(file, (manifest.folder / file).resolve()) for file in files
        ]
        former = [file for file in _listed_files(repo) if file not in files]
        changes += [CommitOperationDelete(file) for file in former if api.file_exists(repo, file)]
        return api.create_commit(repo, changes, commit_message=message or title).oid


def _listed_files(repo: str) -> Collection[str]:
    """Return the names of the files in a repository's bundle; () if it has no bundle."""
    from huggingface_hub import errors, hf_hub_download

    try:
        return bundle.read(Path(hf_hub_download(repo, bundle.MANIFEST)).parent).files
    except errors.LocalEntryNotFoundError:  # the Hub cannot be reached
        raise
    except (errors.EntryNotFoundError, errors.RevisionNotFoundError, CheckpointError, DataError):
        return ()  # an empty repository, or not a bundle of ours


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turn errors in the ``with`` block into one-line errors; hide huggingface_hub's warnings.

    ``name`` is the model's name on the Hub, which the messages name.
    """
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import logging as reports

    level = reports.get_verbosity()
    reports.set_verbosity_error()
    try:
        yield
    except FairseqExtError as error:
        kind = CheckpointError if isinstance(error, DataError) else type(error)
        raise kind(f"{name} on {constants.ENDPOINT}: {error}") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise EnvironmentProblem(
            f"{name} is not here, and {constants.ENDPOINT} cannot be reached; check the name, or "
            "the network and HF_HUB_OFFLINE."
        ) from None
    except (
        errors.EntryNotFoundError,
        errors.RevisionNotFoundError,
        errors.RepositoryNotFoundError,
    ):
        raise CheckpointError(
            f"{name} is not here, and no complete bundle on {constants.ENDPOINT} that you may use; "
            f"check the name and the revision, or {LOGIN}."
        ) from None
    except Exception as error:  # from the library, or the network library below it
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise EnvironmentProblem(
            f"{name} on {constants.ENDPOINT} cannot be used: {reason:.200}. If the Hub refuses "
            f"access, {LOGIN}."
        ) from error
    finally:
        reports.set_verbosity(level)
