"""The classes that checkpoints may contain.

``torch.load`` of torch 2.6 and later refuses every class it does not know (``weights_only``).
"""

from __future__ import annotations

import os

from fairseq_ext.checkpoints.storage import allow_harmless_classes
from fairseq_ext.plugin.table import Patch


def _load_nothing_but_data() -> None:
    """Set variables that torch reads at every ``torch.load``, also in child processes."""
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"


PATCHES = (
    Patch(
        name="files are data",
        kind="security",
        reason="fairseq's own repository loads with weights_only=False, and advice on the web sets "
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD: both run any code in a checkpoint",
        act=_load_nothing_but_data,
    ),
    Patch(
        name="safe checkpoint classes",
        kind="security",
        reason="resume, generation and hub loading of stock architectures end in UnpicklingError, "
        "because torch loads with weights_only=True and checkpoints hold argparse.Namespace",
        act=allow_harmless_classes,
    ),
)
