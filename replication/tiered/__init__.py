"""Tiered storage between nodes (KIP-405): the metadata topic, auxiliary state, and deleted topics."""
