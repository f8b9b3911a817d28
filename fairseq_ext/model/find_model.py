"""Find models by name: bundles that come with the plugin, and bundles on the Hub.

``fairseq_ext/shipped`` is a link to the repository's ``models``; an installed package has copies.
"""

from pathlib import Path

from fairseq_ext.checkpoints import bundle
from fairseq_ext.model import hub
from fairseq_ext.utils.errors import ConfigError

SHIPPED = Path(__file__).resolve().parents[1] / "shipped"


def shipped(folder: Path = SHIPPED) -> list[str]:
    """List the models that come with the plugin, in alphabetical order."""
    return sorted(path.name for path in folder.glob("*") if bundle.is_bundle(path))


def resolved(path: Path, folder: Path = SHIPPED) -> Path:
    """Return the folder of a shipped bundle or one on the Hub; return other paths unchanged."""
    if not path.exists() and str(path) == path.name and path.name in shipped(folder):
        return folder / path.name
    return hub.fetched(path)


def require(path: Path) -> Path:
    """Refuse a path that does not exist; it may be a misspelt name."""
    if not path.exists():
        names = ", ".join(shipped()) or "none"
        raise ConfigError(f"{path} does not exist; the models that come along are {names}.")
    return path


def existing_bundle(path: Path, participle: str) -> Path:
    """Find a bundle with :func:`resolved`; errors say that only bundles are ``participle``."""
    path = require(resolved(path))
    if not bundle.is_bundle(path):
        raise ConfigError(f"{path} is no bundle; only these are {participle}.")
    return path
