"""The rules of write streams."""
