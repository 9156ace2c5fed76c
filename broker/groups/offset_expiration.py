"""When a committed offset has been kept long enough (KIP-211). Values in, decision out."""

from __future__ import annotations

from odradek.broker.groups.messages import CommittedOffset
from odradek.seams.values import value_class


@value_class
class OffsetExpirationRule:
    """From when on a group's offsets age (ms since the epoch): None is each from its commit."""

    since_ms: int | None


def is_expired(
    offset: CommittedOffset, rule: OffsetExpirationRule | None, *, now_ms: int, retention_ms: int
) -> bool:
    """Whether an offset is to go. A group without a rule keeps its offsets while it is as it is.

    A commit of an old client may have brought its own expiry, which then decides alone.
    """
    if rule is None:
        return False
    if offset.expire_timestamp_ms is not None:
        return now_ms >= offset.expire_timestamp_ms
    since_ms = offset.commit_timestamp_ms if rule.since_ms is None else rule.since_ms
    return now_ms - since_ms >= retention_ms
