"""A small Kafka client on trio."""
