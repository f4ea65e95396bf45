"""The topics of dead letters and of their ledger."""
