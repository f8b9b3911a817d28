"""Programs that run in another Python, by their paths; nothing of this package imports them.

Each needs the standard library and the library of one metric, and not this package.
"""
