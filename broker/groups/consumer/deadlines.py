"""Until when members of a consumer group have to be heard of, kept in memory alone."""

from __future__ import annotations

import enum


class Wait(enum.Enum):
    """What a member is late with when its time is over."""

    SESSION = "its session expired"
    REVOCATION = "it did not give up its partitions within the rebalance timeout"
    JOIN = "it did not join again within the rebalance timeout"
    SYNC = "it did not ask for its assignment within the rebalance timeout"


class Deadlines:
    """`wake_ms` is the first of them, or before it: moving one back leaves it as it is."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, Wait], tuple[int, int]] = {}
        """Member and what is awaited of it: when (ms), and in which epoch of the member."""
        self.wake_ms: int | None = None

    def set(self, member_id: str, wait: Wait, at_ms: int, epoch: int = 0) -> None:
        self._at[member_id, wait] = (at_ms, epoch)
        if self.wake_ms is None or at_ms < self.wake_ms:
            self.wake_ms = at_ms

    def set_if_absent(self, member_id: str, wait: Wait, at_ms: int) -> None:
        if (member_id, wait) not in self._at:
            self.set(member_id, wait, at_ms)

    def get(self, member_id: str, wait: Wait) -> int | None:
        found = self._at.get((member_id, wait))
        return None if found is None else found[0]

    def cancel(self, member_id: str, *waits: Wait) -> None:
        for wait in waits or Wait:
            self._at.pop((member_id, wait), None)

    def clear(self) -> None:
        self._at.clear()
        self.wake_ms = None

    def take_due(self, now_ms: int) -> list[tuple[str, Wait, int]]:
        """Those whose time is over, the first first, each with the epoch it was set in; they are
        forgotten, and `wake_ms` is exact again."""
        due = sorted(
            (at_ms, member_id, wait.name, epoch)
            for (member_id, wait), (at_ms, epoch) in self._at.items()
            if at_ms <= now_ms
        )
        for _, member_id, name, _ in due:
            del self._at[member_id, Wait[name]]
        self.wake_ms = min((at_ms for at_ms, _ in self._at.values()), default=None)
        return [(member_id, Wait[name], epoch) for _, member_id, name, epoch in due]
