"""Rows in columns, with pyarrow and numpy: what the definitions do one by one, for many at once."""
