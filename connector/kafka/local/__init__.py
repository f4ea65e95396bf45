"""A Kafka broker on this machine for first steps, examples and tests."""
