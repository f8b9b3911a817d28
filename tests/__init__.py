"""The tests, in rooms as the package: see the docstring of each folder."""
