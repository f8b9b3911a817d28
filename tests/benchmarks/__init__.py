"""Benchmarks at a tiny size."""
