"""Durable state of diskless topics: WAL files in object storage, and the state of their coordinators (KIP-1164)."""
