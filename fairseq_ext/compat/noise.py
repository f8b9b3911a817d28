"""Warnings about fairseq's own code that its users can do nothing about.

Each is filtered by its own text, so that any other warning still shows.
"""

from __future__ import annotations

import re
import warnings

from fairseq_ext.compat.patching import Fix

HARMLESS = (
    # fairseq composes its configuration through the interface of hydra 1.0, which works.
    (r"hydra.experimental.initialize() is no longer experimental", UserWarning),
    (r"hydra.experimental.compose() is no longer experimental", UserWarning),
    ("\nThe version_base parameter is not specified.", UserWarning),
    ("\nThe strict flag in the compose API is deprecated.", UserWarning),
    ("\n'config' is validated against ConfigStore schema with the same name.", UserWarning),
    ("In 'config': Usage of deprecated keyword in package header", UserWarning),
    # fairseq always asks for pinned memory; without an accelerator torch goes without.
    ("'pin_memory' argument is set as true but no accelerator is found", UserWarning),
    # Old names of torch.amp, with the same meaning.
    ("`torch.cuda.amp.autocast(args...)` is deprecated", FutureWarning),
    ("`torch.cuda.amp.GradScaler(args...)` is deprecated", FutureWarning),
    # Its new name in DistributedDataParallel; fairseq's models have no buffers to tell apart.
    ("`broadcast_buffers` is deprecated", FutureWarning),
    # The decoder's causal mask is of floats and its padding mask of booleans; torch converts.
    ("Support for mismatched key_padding_mask and attn_mask is deprecated", UserWarning),
)


def _filter_harmless() -> None:
    for start, category in HARMLESS:
        warnings.filterwarnings("ignore", message=re.escape(start), category=category)


FIXES = (
    Fix(
        name="warnings of a normal run",
        reason="fairseq uses interfaces that hydra and torch have deprecated but still honour; "
        "their exact messages are filtered",
        until="fairseq uses the new interfaces",
        apply=_filter_harmless,
    ),
)
