"""Deadlines after which members of a consumer group expire; kept in memory only."""

from __future__ import annotations

import enum


class MemberTimeout(enum.Enum):
    """Timeouts of a member; the value is the reason for its removal."""

    SESSION = "its session expired"
    REVOCATION = "it did not revoke its partitions within the rebalance timeout"
    JOIN = "it did not rejoin within the rebalance timeout"
    SYNC = "it did not send SyncGroup within the rebalance timeout"


class MemberDeadlines:
    """Deadlines of the members of one group. `next_deadline_ms` is never later than the first one."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, MemberTimeout], tuple[int, int]] = {}
        """Member id and timeout to deadline (ms) and member epoch."""
        self.next_deadline_ms: int | None = None

    def set(self, member_id: str, timeout: MemberTimeout, at_ms: int, epoch: int = 0) -> None:
        self._at[member_id, timeout] = (at_ms, epoch)
        if self.next_deadline_ms is None or at_ms < self.next_deadline_ms:
            self.next_deadline_ms = at_ms

    def set_if_absent(self, member_id: str, timeout: MemberTimeout, at_ms: int) -> None:
        if (member_id, timeout) not in self._at:
            self.set(member_id, timeout, at_ms)

    def get(self, member_id: str, timeout: MemberTimeout) -> int | None:
        deadline = self._at.get((member_id, timeout))
        return None if deadline is None else deadline[0]

    def cancel(self, member_id: str, *timeouts: MemberTimeout) -> None:
        for timeout in timeouts or MemberTimeout:
            self._at.pop((member_id, timeout), None)

    def clear(self) -> None:
        self._at.clear()
        self.next_deadline_ms = None

    def pop_expired(self, now_ms: int) -> list[tuple[str, MemberTimeout, int]]:
        """Remove the due deadlines and return them in order of time, each with the member epoch in
        which it was set. `next_deadline_ms` is then exact."""
        due = sorted(
            (at_ms, member_id, timeout.name, epoch)
            for (member_id, timeout), (at_ms, epoch) in self._at.items()
            if at_ms <= now_ms
        )
        for _, member_id, name, _ in due:
            del self._at[member_id, MemberTimeout[name]]
        self.next_deadline_ms = min((at_ms for at_ms, _ in self._at.values()), default=None)
        return [(member_id, MemberTimeout[name], epoch) for _, member_id, name, epoch in due]
