"""Schemas of Kafka's stored records, which kio does not have; one class for all versions of a record."""
