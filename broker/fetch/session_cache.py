"""Incremental fetch sessions (KIP-227), without I/O.

A session has the partitions that a client fetches and what the last responses contained, so that a
request has only changes and a response only news. The cache has a limited number of sessions. If it
is full, a session without a request for two minutes is evicted; otherwise no session is created,
and the client sends full fetches, which is always correct. A follower may evict the session of a
consumer, because it fetches for its whole life.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.seams.entropy import Entropy


class SessionPartitions(Protocol):
    """Per-session state that ends with the session: a follower's `UnchangedPartitions`."""

    def close(self) -> None: ...


NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EVICTABLE_AFTER_SECONDS = 120.0


class SessionNotFound(KafkaError):
    code = ErrorCode.fetch_session_id_not_found


class InvalidSessionEpoch(KafkaError):
    code = ErrorCode.invalid_fetch_session_epoch


class SessionTopicIds(KafkaError):
    code = ErrorCode.fetch_session_topic_id_error


PartitionKey = tuple[UUID | str | None, int]


@dataclass(slots=True)
class CachedPartition:
    """Partition of a session: the current fetch, and the offsets of the last response."""

    topic: str | None
    topic_id: UUID | None
    index: int
    offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1
    resolved_topic: str | None = None
    """Name of the topic with `topic_id` when it was last found."""

    @property
    def key(self) -> PartitionKey:
        return (self.topic_id or self.topic, self.index)

    def update_from(self, newer: CachedPartition) -> None:
        """Take over the fields of a newer request; the sent offsets are kept."""
        self.offset = newer.offset
        self.max_bytes = newer.max_bytes
        self.current_leader_epoch = newer.current_leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.log_start_offset = newer.log_start_offset

    def must_send(self, response: FetchedPartition) -> bool:
        """Whether an incremental response must contain this; updates the sent offsets."""
        news = bool(response.records) or (
            response.error_code != ErrorCode.none
            or response.diverging_epoch is not None
            or response.preferred_read_replica != -1
            or response.high_watermark != self.sent_high_watermark
            or response.log_start_offset != self.sent_log_start_offset
        )
        failed = response.error_code != ErrorCode.none or response.diverging_epoch is not None
        # After an error the next success is news even if no offset moved. A follower uses nothing
        # of a response with a diverging epoch.
        self.sent_high_watermark = -1 if failed else response.high_watermark
        self.sent_log_start_offset = response.log_start_offset
        return news


@dataclass(slots=True)
class FetchSession:
    session_id: int
    epoch: int
    uses_topic_ids: bool
    partitions: dict[PartitionKey, CachedPartition]
    used_at: float
    is_follower: bool = False
    unchanged: SessionPartitions | None = None
    """Unchanged partitions of a follower, once there are any."""

    def end(self) -> None:
        if self.unchanged is not None:
            self.unchanged.close()


@dataclass(slots=True)
class FetchContext:
    """Partitions of one request, and the session that selects the results for the response."""

    session_id: int
    wanted: Sequence[CachedPartition]
    incremental: bool
    session: FetchSession | None = None

    def select(
        self, responses: Iterable[tuple[CachedPartition, FetchedPartition]]
    ) -> list[tuple[CachedPartition, FetchedPartition]]:
        """Return the results for the response.

        Partitions with records move to the end of the session, so that a busy one cannot starve the
        others.
        """
        if self.session is None:
            return list(responses)
        chosen = []
        for wanted, response in responses:
            news = wanted.must_send(response)
            if news or not self.incremental:
                chosen.append((wanted, response))
            if response.records and self.session.partitions.pop(wanted.key, None) is not None:
                self.session.partitions[wanted.key] = wanted
        return chosen


class FetchSessionCache:
    def __init__(self, slots: int, entropy: Entropy) -> None:
        self._slots = slots
        self._entropy = entropy
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def new_context(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[CachedPartition],
        forgotten: Iterable[PartitionKey],
        *,
        uses_topic_ids: bool,
        now: float,
        is_follower: bool = False,
    ) -> FetchContext:
        """Begin, continue or end a session. `now` is in monotonic seconds.

        If a partition is named twice, the last one counts. Raises SessionNotFound,
        InvalidSessionEpoch or SessionTopicIds, as the top-level error of the response.
        """
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._drop(session_id)
            named = {each.key: each for each in wanted}
            if epoch == FINAL_EPOCH:
                return FetchContext(NO_SESSION, tuple(named.values()), incremental=False)
            return self._begin(named, uses_topic_ids, now, is_follower)
        return self._continue(session_id, epoch, wanted, forgotten, uses_topic_ids, now)

    def _begin(
        self,
        named: dict[PartitionKey, CachedPartition],
        uses_topic_ids: bool,
        now: float,
        is_follower: bool,
    ) -> FetchContext:
        wanted = tuple(named.values())
        if len(self._sessions) >= self._slots and not self._evict(now, is_follower):
            return FetchContext(NO_SESSION, wanted, incremental=False)
        session = FetchSession(
            self._new_id(),
            1,
            uses_topic_ids,
            named,
            now,
            is_follower,
        )
        self._sessions[session.session_id] = session
        return FetchContext(session.session_id, wanted, incremental=False, session=session)

    def _continue(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[CachedPartition],
        forgotten: Iterable[PartitionKey],
        uses_topic_ids: bool,
        now: float,
    ) -> FetchContext:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFound(f"no fetch session {session_id}")
        if session.epoch != epoch:
            raise InvalidSessionEpoch(f"session {session_id} expects epoch {session.epoch}")
        if session.uses_topic_ids != uses_topic_ids:
            raise SessionTopicIds("all requests of a session must use topic ids, or none")
        for each in wanted:
            known = session.partitions.get(each.key)
            if known is None:
                session.partitions[each.key] = each
            else:
                known.update_from(each)
        for key in forgotten:
            session.partitions.pop(key, None)
        if not session.partitions:
            self._drop(session_id)
            return FetchContext(NO_SESSION, (), incremental=False)
        self._sessions.pop(session_id)
        session.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        session.used_at = now
        self._sessions[session_id] = session
        return FetchContext(session_id, tuple(session.partitions.values()), True, session)

    def _evict(self, now: float, for_follower: bool) -> bool:
        """Make space for a session; False if no session may be evicted."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.used_at < EVICTABLE_AFTER_SECONDS:
            if not for_follower:
                return False
            oldest = next((each for each in self._sessions.values() if not each.is_follower), None)
            if oldest is None:
                return False
        self._drop(oldest.session_id)
        return True

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()

    def _new_id(self) -> int:
        while True:
            drawn = 1 + self._entropy.below(2**31 - 1)
            if drawn not in self._sessions:
                return drawn
