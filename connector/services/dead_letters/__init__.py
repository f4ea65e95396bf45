"""Dead letters of a stream, with what the warehouse and Kafka know of them."""
