"""Helpers for every room that no library has: files, locks, archives, errors, JSON."""
