"""Shared code that every wing may import; nothing here imports a wing."""
