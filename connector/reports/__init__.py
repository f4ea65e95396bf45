"""Reports on what commits store: the status of streams and tables, and audits."""
