"""Scripts that compute neural metrics in another Python; this package does not import them.

Each needs the standard library and the library of one metric, but not this package.
"""
