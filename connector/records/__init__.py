"""Change records and their bytes: `model` has the records and the rules of their fields, `codec`
the bytes. No I/O.
"""
