"""The only entry point of this plugin, :func:`register`.

fairseq calls it because of an option: ``--user-dir user_dir`` in a clone, or
``--user-dir "$(fairseq-ext user-dir)"`` in an installation. Our commands, and the processes that
they start, call it themselves. An import alone registers nothing.
"""

import functools


@functools.cache
def register() -> None:
    """Repair fairseq for today's Python and torch, then register every architecture.

    Calling it again does nothing.

    Raises:
        EnvironmentProblem: fairseq or torch is missing, two distributions provide fairseq, or a
            model name of ours is taken.
    """
    from fairseq_ext.plugin import installation
    from fairseq_ext.utils import error_messages, extras

    error_messages.install_excepthook()
    extras.need("torch", "fairseq")
    installation.check_single_fairseq()
    from fairseq_ext.base import wings
    from fairseq_ext.plugin import patches

    patches.apply()
    from fairseq_ext.generation import translation_ext  # noqa: F401

    wings.load()
