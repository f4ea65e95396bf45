"""The changelog and the tables as Delta tables."""
