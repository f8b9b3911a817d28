"""The long checks of docs/reliability.md, one module for each part of ``tests/soak.sh``.

``python -m tests.soak.PART --json FILE`` runs one from the repository's root.
"""
