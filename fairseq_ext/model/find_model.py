"""Names of models: bundles that come with the plugin, and bundles on the Hub.

``fairseq_ext/shipped`` leads to ``models`` at the root of the repository; an installation that is
not editable has copies.
"""

from __future__ import annotations

from pathlib import Path

from fairseq_ext.checkpoints import bundle
from fairseq_ext.model import hub

SHIPPED = Path(__file__).resolve().parents[1] / "shipped"


def shipped(folder: Path = SHIPPED) -> list[str]:
    """Names of the models that come with the plugin, in alphabetical order."""
    return sorted(path.name for path in folder.glob("*") if bundle.is_bundle(path))


def resolved(path: Path, folder: Path = SHIPPED) -> Path:
    """Return the folder of the bundle that a name stands for; return any other path unchanged.

    A path that exists is not taken for a name.

    Raises:
        CheckpointError, EnvironmentProblem: it is a name on the Hub, and cannot be downloaded.
    """
    if not path.exists() and str(path) == path.name and path.name in shipped(folder):
        return folder / path.name
    return hub.fetched(path)
