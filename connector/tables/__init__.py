"""Converts changes to rows of tables. No I/O."""
