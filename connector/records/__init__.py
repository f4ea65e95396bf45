"""Change records and their bytes. No I/O."""
