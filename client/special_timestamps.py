"""Special timestamps of ListOffsets, without dependencies on a client."""

from __future__ import annotations

LATEST = -1
"""Log end offset; the last stable offset for read_committed."""
EARLIEST = -2
"""Log start offset."""
MAX_TIMESTAMP = -3
"""Offset of the record with the largest timestamp."""
EARLIEST_LOCAL = -4
"""Local log start offset (KIP-405)."""
LATEST_TIERED = -5
"""Last offset in the remote tier (KIP-1005)."""
