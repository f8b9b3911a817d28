"""Helpers that the tests share: commands as processes, tiny corpora, tiny models."""
