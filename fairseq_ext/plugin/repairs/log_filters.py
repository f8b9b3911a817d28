"""Remove noise from the log: warnings about fairseq's own code, and repeated lines.

Each warning is recognized by the exact beginning of its text. All other warnings are still shown.
"""

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fairseq_ext.plugin.patching import acting, around

HARMLESS = (
    # fairseq composes its configuration with the interface of hydra 1.0, which still works.
    "hydra.experimental.initialize() is no longer experimental",
    "hydra.experimental.compose() is no longer experimental",
    "\nThe version_base parameter is not specified.",
    "\nThe strict flag in the compose API is deprecated.",
    "\n'config' is validated against ConfigStore schema with the same name.",
    "In 'config': Usage of deprecated keyword in package header",
    # fairseq always asks for pinned memory, which torch ignores without an accelerator.
    "'pin_memory' argument is set as true but no accelerator is found",
    # Old names in torch.amp that still work.
    "`torch.cuda.amp.autocast(args...)` is deprecated",
    "`torch.cuda.amp.GradScaler(args...)` is deprecated",
    # torch 2.14 and later warn of it, but still compile fairseq's functions.
    "`torch.jit.script` is deprecated",
    # A renamed option of DistributedDataParallel; it does not matter for fairseq's models.
    "`broadcast_buffers` is deprecated",
    # The decoder's causal mask has floats, its padding mask booleans; torch converts them.
    "Support for mismatched key_padding_mask and attn_mask is deprecated",
)


@acting("advice on import")  # first, because every import of fairseq prints this advice
def _hide_advice() -> None:
    """Hide the advice to install tensorboardX.

    Problem: Without tensorboardX, `import fairseq` asks on stderr, in every process, to install
    it for speech tasks.
    """
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


@acting("warnings of a normal run")
def _filter_harmless() -> None:
    """Hide the warnings in :data:`HARMLESS` and the debugging messages of hydra.

    Problem: fairseq calls deprecated functions of hydra and torch, which still work but warn.
    """
    for start in HARMLESS:
        warnings.filterwarnings("ignore", message=re.escape(start))
    # Importing fairseq makes the root logger print, before a command chooses which messages.
    logging.getLogger("hydra").setLevel(logging.INFO)


@around("fairseq.logging.progress_bar:progress_bar", patch="log file")
def _log_file_once(original: Callable, *args: Any, **options: Any) -> Any:
    """Open ``--log-file`` only if the logger does not yet write to that file.

    Problem: fairseq opens --log-file again in each epoch and validation, and never closes it. So
    it writes each line more and more often. The plugin's messages are missing in this file.
    """
    from fairseq.logging.progress_bar import logger

    files = {getattr(handler, "baseFilename", None) for handler in logger.handlers}
    log_file = options.get("log_file")
    if log_file is not None and os.path.abspath(log_file) in files:  # noqa: PTH100  # as in logging
        options["log_file"] = None
    return original(*args, **options)


@around("fairseq.checkpoint_utils:verify_checkpoint_directory", patch="log file")
def _log_plugin(original: Callable, save_dir: str) -> None:
    """In the first process, also write the plugin's messages to ``--log-file``."""
    plugin = logging.getLogger("fairseq_ext")
    for handler in logging.getLogger("fairseq_cli.train").handlers:
        if isinstance(handler, logging.FileHandler):
            plugin.addHandler(handler)  # a handler that is there already is not added again
    original(save_dir)


_reported: set[object] = set()  # names of logs about which an error was printed


@around("logging:Handler.handleError", patch="logs that cannot be written")
def _say_once(original: Callable, self: Any, record: logging.LogRecord) -> None:
    """If a log cannot be written, print one line, instead of a traceback for each message.

    Problem: On a full disk, every log line prints a traceback on stderr.
    """
    error, name = sys.exc_info()[1], getattr(getattr(self, "stream", None), "name", self)
    if not isinstance(error, OSError):  # a mistake in a call of the logger
        original(self, record)
    elif name not in _reported and logging.raiseExceptions and sys.stderr is not None:
        _reported.add(name)
        message = f"fairseq-ext: the log {name} cannot be written: {error.strerror or error}."
        with suppress(OSError):  # stderr may be on that disk, too
            print(message, file=sys.stderr)
