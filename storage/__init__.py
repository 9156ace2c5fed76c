"""The durable state of one node."""
