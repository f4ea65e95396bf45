"""The data about streams and tables that commits store, and the reports about it. No I/O."""
