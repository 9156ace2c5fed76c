"""Decisions about diskless topics without I/O: coordinators, file ownership and produce gateways (KIP-1164)."""
