"""The steps of ``tests/gpu.sh``: one module for each, all with the options of :mod:`.results`."""
