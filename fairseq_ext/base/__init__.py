"""What every wing may use; nothing here knows a wing."""
