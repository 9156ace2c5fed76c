"""State of a leader in its epoch: replica progress, high watermark, check quorum (Kafka's
`LeaderState`).

- A follower's fetch offset is durable; the leader's own end offset counts once it is flushed. The high
  watermark is the offset that a majority has reached, and only advances past the start of the epoch
  (Raft, section 5.4.2): another leader could overwrite earlier records.
- The majority is that of the newest voter set in the log. A leader that removed itself does not count
  itself, and leads until the removal is committed (KIP-853).
- A leader resigns if no majority has fetched for 1.5 fetch timeouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from odradek.replication.raft.voter_changes import PendingVoterChange
from odradek.replication.raft.voters import NO_DIRECTORY, ReplicaKey, VoterSet
from odradek.seams.values import state_class

OBSERVER_SESSION_MS: Final = 300_000
CAUGHT_UP_WITHIN_MS: Final = 3_600_000


@state_class
class ReplicaState:
    """Progress of one replica. Times are `now_ms` of the state machine; -1 means never."""

    key: ReplicaKey
    end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    leader_end_at_last_fetch: int = -1

    def fetched(self, end_offset: int, now_ms: int, leader_end: int) -> None:
        """Record a fetch. A replica is caught up if it has the leader's end offset of now or of
        its last fetch (KIP-836)."""
        if end_offset >= leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif 0 < self.leader_end_at_last_fetch <= end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.leader_end_at_last_fetch = leader_end
        self.last_fetch_ms = max(self.last_fetch_ms, now_ms)
        self.end_offset = end_offset


class LeaderState:
    """State of this leader's epoch. `start_offset` is the offset of the epoch's first record."""

    def __init__(
        self,
        key: ReplicaKey,
        *,
        epoch: int,
        start_offset: int,
        voters: VoterSet,
        granted: Iterable[int],
        fetch_timeout_ms: int,
        now_ms: int,
    ) -> None:
        self.key = key
        self.epoch = epoch
        self.start_offset = start_offset
        self.granted = tuple(sorted(granted))
        self.high_watermark = -1  # unknown until this epoch has committed something
        self.pending: PendingVoterChange | None = None
        self.appending_voters = False  # action issued, not completed
        self.begin_epoch_at_ms = now_ms
        self._leave_at_ms: int | None = None
        self._begin_interval_ms = fetch_timeout_ms // 2
        self._check_quorum_ms = fetch_timeout_ms * 3 // 2
        self._check_quorum_at_ms = now_ms + self._check_quorum_ms
        self._fetched: set[int] = set()
        self._observers: dict[ReplicaKey, ReplicaState] = {}
        self._members: dict[int, ReplicaState] = {}
        self._voters = VoterSet()
        self.change_voters(voters)

    # Replicas

    def change_voters(self, voters: VoterSet) -> None:
        """Apply a new voter set; replicas keep their progress."""
        old = dict(self._members)
        self._members = {}
        for voter in voters:
            known = old.get(voter.id)
            if known is not None and known.key.directory_id in (NO_DIRECTORY, voter.directory_id):
                del old[voter.id]
            else:
                known = self._observers.pop(voter.key, None) or ReplicaState(voter.key)
            known.key = voter.key  # an upgrade of kraft.version adds the directory id
            self._members[voter.id] = known
        for progress in old.values():
            self._observers.setdefault(progress.key, progress)
        self._voters = voters

    def replica_state(self, key: ReplicaKey) -> ReplicaState:
        """Progress of a voter or observer; an observer is added at its first fetch."""
        if self._voters.includes(key):
            return self._members[key.id]
        return self._observers.setdefault(key, ReplicaState(key))

    def voter_progress(self) -> list[ReplicaState]:
        return list(self._members.values())

    def observer_progress(self, now_ms: int) -> list[ReplicaState]:
        """Observers that have fetched in the last five minutes."""
        self._observers = {
            key: each
            for key, each in self._observers.items()
            if key == self.key or now_ms - each.last_fetch_ms < OBSERVER_SESSION_MS
        }
        return [each for key, each in self._observers.items() if key != self.key]

    def successors(self) -> tuple[ReplicaKey, ...]:
        """The other voters by end offset, largest first."""
        others = [each for each in self._members.values() if each.key.id != self.key.id]
        return tuple(each.key for each in sorted(others, key=lambda each: -each.end_offset))

    # High watermark

    def flushed(self, end_offset: int) -> bool:
        """The leader's log is durable up to `end_offset`. Returns whether the high watermark
        advanced."""
        own = self.replica_state(self.key)
        own.end_offset = max(own.end_offset, end_offset)
        return self.recount()

    def fetched(self, key: ReplicaKey, end_offset: int, now_ms: int, leader_end: int) -> bool:
        """Record a fetch at `end_offset`. Returns whether the high watermark advanced."""
        self.replica_state(key).fetched(end_offset, now_ms, leader_end)
        self.update_check_quorum(key, now_ms)
        return self._voters.includes(key) and self.recount()

    def recount(self) -> bool:
        """Recompute the high watermark; returns whether it advanced."""
        ends = sorted((each.end_offset for each in self._members.values()), reverse=True)
        agreed = ends[self._voters.majority - 1]
        if agreed <= max(self.high_watermark, self.start_offset):
            return False
        self.high_watermark = agreed
        return True

    def is_caught_up(self, key: ReplicaKey, now_ms: int) -> bool:
        """Whether an observer may become a voter: it has caught up, and fetched within the last
        hour."""
        observer = self._observers.get(key)
        return (
            observer is not None
            and observer.last_caught_up_ms >= 0
            and observer.last_fetch_ms > now_ms - CAUGHT_UP_WITHIN_MS
        )

    # Check quorum and BeginQuorumEpoch

    def update_check_quorum(self, key: ReplicaKey, now_ms: int) -> None:
        """Record a Fetch or FetchSnapshot of a voter for the check-quorum timer."""
        if self._voters.includes(key):
            self._fetched.add(key.id)
        needed = self._voters.majority - (self.key.id in self._members)
        if len(self._fetched) >= needed:
            self._fetched.clear()
            self._check_quorum_at_ms = now_ms + self._check_quorum_ms

    @property
    def check_quorum_at_ms(self) -> int | None:
        """Deadline of the check-quorum timer; None if one voter remains. That voter may lack the
        removal record, and could not be elected without this leader."""
        return None if len(self._members) == 1 else self._check_quorum_at_ms

    def schedule_resignation(self, now_ms: int) -> None:
        """This leader's removal is committed: resign at the next tick, after the responses are
        sent."""
        self._leave_at_ms = now_ms

    @property
    def resign_at_ms(self) -> int | None:
        return self.check_quorum_at_ms if self._leave_at_ms is None else self._leave_at_ms

    def voters_without_recent_fetch(self, now_ms: int) -> list[ReplicaKey]:
        """Voters that have not fetched recently, and need a BeginQuorumEpoch request."""
        return [
            each.key
            for each in self._members.values()
            if each.key.id != self.key.id
            and (each.last_fetch_ms < 0 or now_ms - each.last_fetch_ms >= self._begin_interval_ms)
        ]

    def begin_epoch_sent(self, now_ms: int) -> None:
        self.begin_epoch_at_ms = now_ms + self._begin_interval_ms

    @property
    def deadline_ms(self) -> int | None:
        pending = None if self.pending is None else self.pending.until_ms
        dues = (
            self.resign_at_ms,
            pending,
            self.begin_epoch_at_ms if len(self._members) > 1 or self._is_removed else None,
        )
        return min((each for each in dues if each is not None), default=None)

    @property
    def _is_removed(self) -> bool:
        """Whether the leader is no longer a voter."""
        return self.key.id not in self._members
