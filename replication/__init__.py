"""Replication of partitions, and the metadata quorum with its controller (KIP-500, KIP-595)."""
