"""A change data connector: Avro change records over Kafka and Spark Structured Streaming into Delta tables."""
