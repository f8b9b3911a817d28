"""Helpers that all packages share and no library has: files, locks, archives, errors, JSON."""
