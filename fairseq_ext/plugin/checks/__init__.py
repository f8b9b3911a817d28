"""Checks: errors of one line for a user's mistakes."""
