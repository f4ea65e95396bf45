"""Applying logged changes to Delta tables."""
