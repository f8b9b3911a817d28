"""Placeholder while the module is being written."""


def apply() -> None:
    """Nothing yet."""
