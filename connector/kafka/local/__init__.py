"""A Kafka broker on this machine for the demo, the tests and first steps."""
