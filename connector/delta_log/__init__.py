"""The log of a Delta table, read and written by this process.

A log is a folder with a file of actions for each commit. `actions` has the state that they make,
and says which tables lowmark knows completely. `log` keeps the state of a table in memory, and
commits. `put` is the folder of a local table. `checksum` and `checkpoint` are the files that help
readers.
"""
