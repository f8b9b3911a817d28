"""Find a test set: the user's own file, or one of sacrebleu's test sets by its name.

sacrebleu downloads a set once, verifies its checksum, and keeps it in ``~/.sacrebleu``, or in the
folder in the environment variable ``SACREBLEU``.
"""

from pathlib import Path

from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.parsing import nearest


def source(test_set: Path, pair: str | None) -> Path | None:
    """Return the file with the source text of a set; None if ``test_set`` is the user's file."""
    reference_path = reference(test_set, pair)
    if reference_path == test_set:
        return None
    from sacrebleu.utils import get_source_file

    return Path(get_source_file(test_set.as_posix(), pair))


def reference(test_set: Path, pair: str | None) -> Path:
    """Return the file with the reference, downloaded if necessary.

    ``test_set`` is a file or, if there is no such file, the name of a set, such as ``wmt14/full``.
    A set also needs ``pair``, such as ``en-de``.
    """
    name = test_set.as_posix()
    if test_set.exists() or test_set.suffix or test_set.is_absolute():
        return test_set
    from sacrebleu.utils import SACREBLEU_DIR, get_available_testsets, get_langpairs_for_testset
    from sacrebleu.utils import get_reference_files as download

    set_names = get_available_testsets()
    if name not in set_names:
        hint = nearest(name, set_names)
        raise DataError(f"`{name}` is neither a file nor a test set of sacrebleu{hint}")
    pairs = get_langpairs_for_testset(name)
    if pair not in pairs:
        but = "is missing" if pair is None else f"is `{pair}`"
        raise ConfigError(
            f"`--language-pair` must be one of {', '.join(pairs)} for `--ref {name}`, but {but}."
        )
    try:
        paths = download(name, pair)
    except (Exception, SystemExit) as error:  # sacrebleu exits on a wrong checksum
        raise DataError(
            f"sacrebleu cannot get the test set `{name}` ({type(error).__name__}: {error}); try "
            f"`sacrebleu -t {name} -l {pair} --echo ref`, and delete {SACREBLEU_DIR}/{name} if it "
            "is damaged."
        ) from error
    if len(paths) > 1:
        raise DataError(
            f"`{name}` has {len(paths)} references of {pair}, but one is compared with: choose "
            f"among {', '.join(paths)}."
        )
    return Path(paths[0])
