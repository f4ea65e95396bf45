"""How changes become rows of tables. No I/O."""
