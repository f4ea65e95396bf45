"""The dead-letter topic, the ledger topic, and the operations on dead letters."""
