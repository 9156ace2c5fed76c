"""Deadlines after which members of a consumer group expire; kept in memory only."""

from __future__ import annotations

import enum


class MemberTimeout(enum.Enum):
    """What a member is late with when its time is over."""

    SESSION = "its session expired"
    REVOCATION = "it did not give up its partitions within the rebalance timeout"
    JOIN = "it did not join again within the rebalance timeout"
    SYNC = "it did not ask for its assignment within the rebalance timeout"


class MemberDeadlines:
    """`next_deadline_ms` is the first of them, or before it: moving one back leaves it as it is."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, MemberTimeout], tuple[int, int]] = {}
        """Member and what is awaited of it: when (ms), and in which epoch of the member."""
        self.next_deadline_ms: int | None = None

    def set(self, member_id: str, wait: MemberTimeout, at_ms: int, epoch: int = 0) -> None:
        self._at[member_id, wait] = (at_ms, epoch)
        if self.next_deadline_ms is None or at_ms < self.next_deadline_ms:
            self.next_deadline_ms = at_ms

    def set_if_absent(self, member_id: str, wait: MemberTimeout, at_ms: int) -> None:
        if (member_id, wait) not in self._at:
            self.set(member_id, wait, at_ms)

    def get(self, member_id: str, wait: MemberTimeout) -> int | None:
        found = self._at.get((member_id, wait))
        return None if found is None else found[0]

    def cancel(self, member_id: str, *waits: MemberTimeout) -> None:
        for wait in waits or MemberTimeout:
            self._at.pop((member_id, wait), None)

    def clear(self) -> None:
        self._at.clear()
        self.next_deadline_ms = None

    def pop_expired(self, now_ms: int) -> list[tuple[str, MemberTimeout, int]]:
        """Those whose time is over, the first first, each with the epoch it was set in; they are
        forgotten, and `next_deadline_ms` is exact again."""
        due = sorted(
            (at_ms, member_id, wait.name, epoch)
            for (member_id, wait), (at_ms, epoch) in self._at.items()
            if at_ms <= now_ms
        )
        for _, member_id, name, _ in due:
            del self._at[member_id, MemberTimeout[name]]
        self.next_deadline_ms = min((at_ms for at_ms, _ in self._at.values()), default=None)
        return [(member_id, MemberTimeout[name], epoch) for _, member_id, name, epoch in due]
