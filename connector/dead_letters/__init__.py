"""Rejected records: their envelope, ledger, repair and replay. No I/O."""
