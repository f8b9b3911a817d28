"""The errors that a user can cause and fix, with a common base class.

Each message names the file, line or option and says what to do. Commands print only the message,
without a traceback, and exit with status 1 (:mod:`fairseq_ext.utils.error_messages`).
"""

import re

# Control characters, Unicode's line ends, marks that change the direction of text, lone surrogates.
_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Make ``text`` one line, with escapes for line ends and characters that control a terminal."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class FairseqExtError(Exception):
    """The base class of all errors that this package raises for a cause outside its code."""

    def __str__(self) -> str:
        return printable(super().__str__())  # the name of a file may contain any character


class ConfigError(FairseqExtError, ValueError):
    """An option, or a combination of options, that cannot work."""


def wrong_value(option: str, requirement: str, value: object) -> ConfigError:
    """Make the error for a wrong value of an option; ``requirement`` follows "must be"."""
    text = value if isinstance(value, int | float) else f"`{value}`"
    return ConfigError(f"`{option}` must be {requirement}, but is {text} instead.")


class DataError(FairseqExtError, ValueError):
    """A text file, dictionary or dataset that cannot be used as it is."""


class CheckpointError(FairseqExtError, RuntimeError):
    """A checkpoint that is missing, damaged, unsafe or of another kind."""


class DivergenceError(FairseqExtError, ArithmeticError):
    """A training run whose loss, gradients or weights are no longer finite."""


class EnvironmentProblem(FairseqExtError, RuntimeError):
    """An installation, folder or disk that this package cannot work with."""
