"""How far a follower is, as its leader knows from its fetches.

A follower is caught up if it has all that the leader has, or had it at some moment of the last
`replica.lag.time.max.ms`. Under a steady stream of small appends a fetch is behind the leader's end
always; so a fetch that reaches what was the leader's end at the fetch before counts as caught up at
that time.

A follower that comes back with less than it had (its disk was replaced, or lost its tail with the power)
has to fetch all of it before it counts again. What it once had says nothing any more; the high watermark,
and so every producer with acks=all, would wait for the whole copy. (Apache Kafka waits, for up to
`replica.lag.time.max.ms`.)
"""

from __future__ import annotations

from odradek.seams.values import value_class

UNKNOWN = -1
NEVER = -(1 << 62)
"""Long before any time that a clock tells; a monotonic one may begin at 0."""


@value_class
class Progress:
    """Offsets are -1 and times NEVER until the first fetch. A broker epoch is None until then, and -1 of
    a follower that does not tell it (before KIP-903)."""

    end_offset: int = UNKNOWN
    start_offset: int = UNKNOWN
    leader_end_offset: int = UNKNOWN
    """The leader's own end when the last fetch came."""
    fetched_ms: int = NEVER
    caught_up_ms: int = NEVER
    broker_epoch: int | None = None

    def after_fetch(
        self, offset: int, start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int
    ) -> Progress:
        """The follower asked for what is at `offset`: it has all that is below."""
        caught_up_ms = self.caught_up_ms if offset >= self.end_offset else NEVER
        if offset >= leader_end_offset:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif offset >= self.leader_end_offset:
            caught_up_ms = max(caught_up_ms, self.fetched_ms)
        return Progress(
            end_offset=offset,
            start_offset=start_offset,
            leader_end_offset=max(leader_end_offset, self.leader_end_offset),
            fetched_ms=now_ms,
            caught_up_ms=caught_up_ms,
            broker_epoch=broker_epoch,
        )

    def after_election(self, leader_end_offset: int, now_ms: int, *, in_sync: bool) -> Progress:
        """The leader was elected again: who is in sync gets its time anew, who is not has to fetch
        before it can be. What it has is known from before."""
        since_ms = now_ms if in_sync else NEVER
        return Progress(
            end_offset=self.end_offset,
            start_offset=self.start_offset,
            leader_end_offset=leader_end_offset,
            fetched_ms=since_ms,
            caught_up_ms=since_ms,
            broker_epoch=self.broker_epoch,
        )

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_max_ms
