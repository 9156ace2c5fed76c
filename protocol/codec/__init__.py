"""Kafka's message encoding, driven by schemas: kio's for messages, Odradek's for stored records.

A schema is converted to a `Structure` (fields with their wire types), and a structure is compiled once per class and
version to a reader or a writer: closures over precomputed `struct.Struct`s.
"""
