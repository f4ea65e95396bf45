"""What the connector reaches, beside what others reach on the same work in the same run. `python -m benchmarks` runs it all."""
