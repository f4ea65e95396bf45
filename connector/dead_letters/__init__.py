"""Rejected records: their envelope, their ledger, repair and replay. No I/O."""
