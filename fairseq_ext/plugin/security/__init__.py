"""Security: nothing from a file is evaluated, imported or unpickled beyond data."""
