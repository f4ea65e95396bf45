"""Single rows: why a row is as it is."""
