"""Replicas that move between the log directories of a node (KIP-113)."""
