"""fairseq reads checkpoints by :mod:`fairseq_ext.checkpoints.storage`: safely, and each once.

``torch.load`` of torch 2.6 and later refuses every class it does not know (``weights_only``); the
few that checkpoints of fairseq have are allowed for everybody else who calls it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import IO, Any

from fairseq_ext.checkpoints import bundle, safe_load, storage
from fairseq_ext.plugin.table import Layer, Patch, around


def _load_nothing_but_data() -> None:
    """Set variables that torch reads at every ``torch.load``, also in child processes."""
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"


def _torch_that_loads_safely(original: ModuleType) -> ModuleType:
    """A copy of the module torch with our ``load``, for fairseq's ``load_checkpoint_to_cpu``."""

    def load(file: IO[bytes], map_location: Any = None) -> dict[str, Any]:
        return storage.load(file.name)

    view = ModuleType("torch")
    vars(view).update(vars(original), load=load)
    return view


@around
def _require_file(original: Callable, path: str, *rest: Any, **options: Any) -> Any:
    """Give fairseq a file to open, also for a bundle; name a file that is not there."""
    from fairseq.file_io import PathManager

    file = bundle.as_file(PathManager.get_local_path(path))
    return original(str(safe_load.require_checkpoint_file(file)), *rest, **options)


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
        act=safe_load.allow_classes,
    ),
    Patch(
        name="checkpoints are read safely",
        kind="security",
        reason="torch reads damaged files as if they were whole, its errors are pages long, and a "
        "pickle may take all memory",
        layers=(
            Layer("fairseq.checkpoint_utils:torch", _torch_that_loads_safely),
            Layer("fairseq.checkpoint_utils:load_checkpoint_to_cpu", _require_file),
        ),
    ),
)
