"""Converts changes to rows of tables: `merge` is the definition of the rows. No I/O."""
