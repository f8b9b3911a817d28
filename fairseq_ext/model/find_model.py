"""Find models by name: bundles that come with the plugin, and bundles on the Hub.

``fairseq_ext/shipped`` is a link to ``models`` at the root of the repository; an installation that
is not editable has copies.
"""

from __future__ import annotations

from pathlib import Path

from fairseq_ext.checkpoints import bundle
from fairseq_ext.model import hub
from fairseq_ext.utils.errors import ConfigError

SHIPPED = Path(__file__).resolve().parents[1] / "shipped"


def shipped(folder: Path = SHIPPED) -> list[str]:
    """List the models that come with the plugin, in alphabetical order."""
    return sorted(path.name for path in folder.glob("*") if bundle.is_bundle(path))


def resolved(path: Path, folder: Path = SHIPPED) -> Path:
    """Return the folder of the bundle with a given name; return any other path unchanged.

    A path that exists is not taken for a name.
    """
    if not path.exists() and str(path) == path.name and path.name in shipped(folder):
        return folder / path.name
    return hub.fetched(path)


def existing_bundle(path: Path, participle: str) -> Path:
    """Resolve a name as :func:`resolved` does, and require a bundle.

    The participle says in the message what can only be done to bundles, such as "exported".
    """
    path = resolved(path)
    if not path.exists():
        raise ConfigError(f"{path} does not exist; check the path.")
    if not bundle.is_bundle(path):
        raise ConfigError(f"{path} is no bundle; only these are {participle}.")
    return path
