"""Store of the coordinators' states: SQLite databases in the log directories, or in memory in a simulation (D-16)."""

from __future__ import annotations

from uuid import UUID

from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.state import DisklessState


class MemoryStateStore:
    """`StateStore` in memory: an opened state is empty, and is rebuilt from the log."""

    def open(self, coordinator_id: int, topic_id: UUID, directory: str) -> DisklessState:
        return MemoryDisklessState(coordinator_id)

    def remove(self, coordinator_id: int, directory: str) -> None:
        """Do nothing: a closed state is not stored."""
