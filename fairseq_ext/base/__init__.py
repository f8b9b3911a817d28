"""Code that all wings share; nothing here imports a wing."""
