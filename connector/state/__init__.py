"""The data about streams and tables that commits store, and when work is due. No I/O."""
