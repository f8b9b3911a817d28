"""Helpers for all packages that no library has: files, locks, archives, errors, JSON."""
