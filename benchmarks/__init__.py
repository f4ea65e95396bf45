"""Benchmarks of lowmark, compared with other tools on the same work in the same run. `python -m
benchmarks` runs all.
"""
