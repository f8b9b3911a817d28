"""Write files completely or not at all (atomic writes, staged folders); notice their changes."""

import errno
import hashlib
import os
import shutil
import signal
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, TypeGuard

from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import ConfigError, DataError, EnvironmentProblem

LONGEST_NAME = 255  # bytes, in all common file systems
LAST = ("dict.", "text.json")  # how the names of files begin that show that a folder is complete
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
TOO_MANY_FILES = {errno.EMFILE, errno.ENFILE}
Version = tuple[int, ...]
_content = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns")
_attributes = attrgetter("st_mode", "st_uid", "st_gid", "st_nlink")


def explain(error: OSError, path: str | Path | None = None) -> str:
    """Return a line that says why a path cannot be used, and a remedy.

    ``path`` is by default the path in ``error``.
    """
    name = path or error.filename2 or error.filename or "the output"
    if error.errno in FULL_DISK:
        cure = "Free some space, or choose a folder on another disk."
    elif error.errno in TOO_MANY_FILES:
        cure = "Allow more of them: ulimit -n 4096"
    elif error.errno == errno.ENOENT:
        cure = "Check the path."
    else:
        cure = "Choose a path that this user may read or write."
    return f"cannot use {name}: {error.strerror or error}. {cure}"


def require_file(path: str | Path, description: str = "file") -> Path:
    """Return ``path`` if it is a regular file that can be opened; otherwise raise DataError.

    ``description`` is the file's name in the message, such as "manifest".
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()
            return path
    except FileNotFoundError:
        raise DataError(f"{description} {path} does not exist; check the path.") from None
    except OSError as error:
        raise DataError(f"{description} {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise DataError(
            f"{description} {str(path)!r} is not a path: it has a NUL character; check it."
        ) from None
    if stat.S_ISDIR(mode):
        raise DataError(f"{description} {path} is a folder; give the file itself.")
    raise DataError(f"{description} {path} is not a regular file; save it as a regular file first.")


def head(path: str | Path, size: int) -> bytes:
    """Return a file's first ``size`` bytes, or b"" if it is not regular or cannot be read."""
    try:
        if not Path(path).is_file():  # to open a pipe would wait for someone to write to it
            return b""
        with Path(path).open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def is_name(name: object) -> TypeGuard[str]:
    """Return whether ``name`` is a plain file name, without a folder."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and not any(sign in name for sign in "/\\\0")
        and len(os.fsencode(name)) <= LONGEST_NAME
    )


def require_folder_of(path: Path, option: str) -> None:
    """Raise EnvironmentProblem if the folder of the file that ``option`` names does not exist."""
    folder = Path(os.path.realpath(path)).parent  # of a link's target, as in `atomic_write`
    if os.path.isdir(folder):  # noqa: PTH112  # the text may be too long for a path
        return
    raise EnvironmentProblem(
        f"`{option} {path}`: {folder} is not a folder. Make it (mkdir -p {folder}) or, if "
        "it is a file, choose another path."
    )


def keep_inputs(inputs: Iterable[str | Path], outputs: Iterable[str | Path]) -> None:
    """Raise :class:`DataError` if an output would overwrite an input."""
    written = {os.path.realpath(path) for path in outputs if not is_special(path)}
    for path in inputs:
        if os.path.realpath(path) in written:
            raise DataError(f"{path} would be overwritten by the output; choose another output.")


def require_new(path: Path) -> None:
    """Raise ConfigError if ``path`` is there already, except for an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is there already; choose another name.")


def twice(paths: Iterable[str | Path]) -> Path | None:
    """Return the first path that names the same file as an earlier path; None if there is none."""
    earlier: set[str] = set()
    for path in paths:
        place = os.path.realpath(path)
        if place in earlier:
            return Path(path)
        earlier.add(place)
    return None


def is_special(path: str | Path) -> bool:
    """Return whether ``path`` is in ``/dev``, or is a folder, a pipe or another special file."""
    is_no_file = os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113  # any text
    return is_no_file or Path(path).is_relative_to("/dev")


def sha256(path: str | Path) -> str:
    """Compute a file's SHA-256 checksum, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def atomic_write(
    path: str | Path, mode: str = "w", *, through_links: bool = True
) -> Iterator[IO[Any]]:
    """Open a temporary file that replaces the file ``path`` once the block has succeeded.

    Readers see the old file or the whole new one, whatever happens in between; after an error the
    temporary file is removed. A device or pipe, such as ``/dev/null``, is written to directly.
    ``mode`` is ``"w"`` (UTF-8 text, ``\\n`` line ends) or ``"wb"``. If ``path`` is a symbolic link,
    its target is replaced. If ``through_links`` is False, the link itself is replaced.
    """
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    exists, is_file = os.path.exists(path), os.path.isfile(path)  # noqa: PTH110, PTH113  # any text
    if exists and not is_file and not Path(path).is_dir():
        with Path(path).open(mode, **text) as file:
            yield file
        return
    target = Path(os.path.realpath(path) if through_links else path)
    if target.is_dir():
        raise EnvironmentProblem(f"{path} is a folder; name a file in it.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open(mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError for some failed writes
        reason: BaseException | None = error
        while reason is not None and not isinstance(reason, OSError):
            reason = reason.__context__
        ours = (str(temporary), str(target))
        if reason is not None and (reason.errno in FULL_DISK or reason.filename in ours):
            raise EnvironmentProblem(explain(reason, path)) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def staged_folder(folder: str | Path) -> Iterator[Path]:
    """Yield an empty folder whose files move to ``folder`` once the block has succeeded.

    The moved files replace files of equal name; other files of ``folder`` stay. After an error in
    the block, ``folder`` is as before; if it is new, it is removed. The files in :data:`LAST` are
    moved last: when they are there, ``folder`` is complete.
    """
    folder = Path(folder)
    with _hidden_folder(folder, ".partial-", folder) as stage:
        yield stage
        with locks.held(
            folder / ".moving.lock", wait=True
        ):  # so that two runs never mix their files
            for path in sorted(stage.iterdir(), key=lambda p: (p.name.startswith(LAST), p.name)):
                path.replace(folder / path.name)


@contextmanager
def _hidden_folder(parent: Path, prefix: str, path: Path) -> Iterator[Path]:
    """Yield a new folder in ``parent`` named ``prefix…``, then remove it; errors name ``path``."""
    hidden = parent / f"{prefix}{os.urandom(8).hex()}"  # before `try`: a signal may come any time
    with no_empty_folder(parent):
        try:
            try:
                parent.mkdir(parents=True, exist_ok=True)
                hidden.mkdir(mode=0o700)
            except OSError as error:
                raise EnvironmentProblem(explain(error, path)) from error
            yield hidden
        except OSError as error:
            if error.errno in FULL_DISK and error.filename is None:
                raise EnvironmentProblem(explain(error, path)) from error
            raise
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def cleaned_up() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, so that the block removes unfinished files.

    After that, the signal ends the process. A second signal ends it at once.
    """
    received: list[int] = []
    owner = os.getpid()

    def stop(number: int, _: object) -> None:
        for handled in handlers:
            signal.signal(handled, signal.SIG_DFL)
        if os.getpid() != owner:  # a process that the command has forked
            signal.raise_signal(number)
        received.append(number)
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    in_main_thread = threading.current_thread() is threading.main_thread()
    # `nohup` lets a command ignore SIGHUP.
    handlers = [n for n in numbers if in_main_thread and signal.getsignal(n) == signal.SIG_DFL]
    for number in handlers:
        signal.signal(number, stop)
    try:
        yield
    except BaseException:
        if received:
            signal.raise_signal(received[0])
        raise
    finally:
        for number in handlers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def no_empty_folder(folder: str | Path) -> Iterator[None]:
    """After an error in the block, remove ``folder`` and its parents if they are new and empty."""
    missing = [path for path in (Path(folder), *Path(folder).parents) if not os.path.lexists(path)]
    try:
        yield
    except BaseException:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def scratch_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder on the disk of ``path``, hidden beside it, and remove it afterwards."""
    path = Path(os.path.realpath(path))
    with _hidden_folder(path.parent, f".{path.name}.", path) as hidden:
        yield hidden


@contextmanager
def atomic_folder(folder: str | Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``folder`` once the block has succeeded.

    ``folder`` must be empty, or not exist, and stays so until a single rename at the end.
    """
    folder = Path(os.path.realpath(folder))
    with scratch_folder(folder) as hidden:
        stage = hidden / folder.name  # only this user can open the hidden folder
        stage.mkdir()
        yield stage
        try:
            for path in (*filter(Path.is_file, stage.rglob("*")), stage):
                _to_disk(path)
            stage.replace(folder)
        except OSError as error:
            raise EnvironmentProblem(explain(error, folder)) from error


def _to_disk(path: Path) -> None:
    """Wait until the content of a file, or a folder's list of its files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writers(paths: list[Path]) -> Iterator[list[IO[str]]]:
    """Open files for writing UTF-8 text; the text is on disk if the block ends without an error."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths
        ]
    for path in paths:
        _to_disk(path)


def write_all(folder: Path, texts: Mapping[str, Iterable[str]]) -> None:
    """Write ``{name: lines}`` into ``folder``, all files completely or none at all."""
    with staged_folder(folder) as stage, writers([stage / name for name in texts]) as opened:
        for file, lines in zip(opened, texts.values(), strict=True):
            file.writelines(f"{line}\n" for line in lines)


def cache_folder() -> Path:
    """Return this package's cache folder, which is below ``XDG_CACHE_HOME`` or ~/.cache."""
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise EnvironmentProblem("there is no home folder; set XDG_CACHE_HOME.") from None
    return caches / "fairseq-ext"


def version(file: str | Path) -> Version:
    """Return a file's device, inode, size, time of modification (mtime) and of change (ctime)."""
    status = Path(file).stat()
    return *_content(status), status.st_ctime_ns


class FileVersions:
    """Versions of files, to notice later changes; make this object before you read the files."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._files = {path: path.stat() for path in paths}

    def require_unchanged(self) -> None:
        """Raise :class:`DataError` if a file has been written to since this object was made.

        A file counts as written to if its inode, size or modification time is new, or only its time
        of change (ctime). The ctime also changes with the mode, the owner and the number of links.
        If one of these three is new, the ctime is not compared.
        """
        for path, old in self._files.items():
            now = path.stat() if path.exists() else None
            if (
                now is None
                or _content(now) != _content(old)
                or (now.st_ctime_ns != old.st_ctime_ns and _attributes(now) == _attributes(old))
            ):
                raise DataError(
                    f"{path} has changed since this process read it; start the command again."
                )
