"""From Kafka into the changelog."""
