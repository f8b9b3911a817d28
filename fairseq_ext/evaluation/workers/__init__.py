"""Scripts that compute neural metrics in another Python, which need not have this package."""
