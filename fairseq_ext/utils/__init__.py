"""Helpers that no library has, for all packages: files, locks, archives, errors, JSON."""
