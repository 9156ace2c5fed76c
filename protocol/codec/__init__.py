"""Kafka's message encoding, driven by schemas: kio's for messages, ours for stored records.

A schema becomes a `Structure` (fields with their wire types), and a structure a reader or a writer:
closures over precomputed `struct.Struct`s, compiled once per class and version.
"""
