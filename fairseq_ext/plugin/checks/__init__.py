"""Checks that turn a user's mistakes into errors of one line."""
