"""Publishing changes."""
