"""Placeholder while the module is being written."""


def install() -> None:
    """Nothing yet."""
