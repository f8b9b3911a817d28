"""The only entry point of this plugin, :func:`register`; importing this package registers nothing.

fairseq calls ``register`` if its command line has ``--user-dir`` (see :mod:`fairseq_ext`). Our
commands, and the processes that they start, call it themselves.
"""

import functools


@functools.cache
def register() -> None:
    """Repair fairseq for today's Python and torch, then register everything that this package adds.

    The package adds architectures, a task, losses and learning-rate schedules. After the call,
    uncaught errors of this package are printed as one line instead of a traceback. A second call
    does nothing.

    Raises:
        EnvironmentProblem: fairseq or torch is missing, two distributions provide fairseq, a patch
            does not fit the installed fairseq, or another plugin has registered the name of one of
            our models.
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
