"""Replica of a partition: leader and follower state, in-sync replicas, high watermark, truncation."""
