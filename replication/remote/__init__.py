"""Tiering between nodes (KIP-405): the topic of the metadata, and what becomes of deleted topics' segments."""
