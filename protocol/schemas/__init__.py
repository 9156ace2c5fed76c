"""Schemas of Kafka's stored records, which kio lacks; kio-style, one class for all versions."""
