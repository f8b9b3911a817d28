"""Four translation papers as fairseq architectures; importing this package registers them.

``--user-dir user_dir`` from a clone, ``--user-dir "$(fairseq-ext user-dir)"`` when installed and
a plain ``import fairseq_ext`` all end in :func:`register`, once per process.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fairseq_ext.version import __version__

__all__ = ["__version__", "register"]


def register() -> None:
    """Mend fairseq for today's Python and torch, then register every architecture.

    Calling it again does nothing, because Python imports a module once.

    Raises:
        EnvironmentProblem: two distributions provide fairseq, or a model name of ours is taken.
        ImportError: fairseq or torch is missing; ``fairseq-ext doctor`` names the cure.
    """
    from fairseq_ext import compat, doctor, errors, guards

    errors.install_excepthook()
    doctor.check_single_fairseq()
    compat.apply()
    from fairseq_ext.binary.packed import runtime as packed_models

    packed_models.install()
    guards.install()
    from fairseq_ext import translation_ext  # noqa: F401
    from fairseq_ext.binary import distillation, schedule  # noqa: F401
    from fairseq_ext.binary import model as binary_model  # noqa: F401
    from fairseq_ext.gru import model as gru_model  # noqa: F401
    from fairseq_ext.linformer import encoder as linformer_encoder  # noqa: F401
    from fairseq_ext.linformer import model as linformer_model  # noqa: F401
    from fairseq_ext.muse import model as muse_model  # noqa: F401


# `fairseq-ext doctor` has to run where fairseq is missing or broken, so our own command
# registers only in the subcommands that need it.
if not Path(sys.argv[0] if sys.argv else "").name.startswith("fairseq-ext"):
    register()
