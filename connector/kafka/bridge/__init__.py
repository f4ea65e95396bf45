"""Reads foreign topics, and publishes their rows as the changes of a stream (SRC-1)."""
