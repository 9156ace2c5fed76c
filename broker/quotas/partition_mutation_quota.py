"""Controller mutation quota: partitions created and deleted by a client (KIP-599), enforced by the active
controller.

For versions that support THROTTLING_QUOTA_EXCEEDED it is strict: when the client has no tokens, a further topic
is rejected and may be retried after the throttle time. Requests of older versions are executed, and the client
is throttled afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from odradek.broker.timers import monotonic_ms
from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.controller_result import ItemRefused
from odradek.seams.clock import Clock

if TYPE_CHECKING:
    from odradek.broker.quotas.client_quotas import Bucket
    from odradek.broker.requests.context import RequestContext

STRICT_SINCE: Final[Mapping[Api, int]] = {
    apis.CREATE_TOPICS: 6,
    apis.CREATE_PARTITIONS: 3,
    apis.DELETE_TOPICS: 5,
}


class RequestMutations:
    """Controller mutations of one request."""

    def __init__(self, bucket: Bucket | None, clock: Clock, *, strict: bool) -> None:
        self._bucket = bucket
        self._clock = clock
        self._strict = strict
        self._missing_ms = 0
        self._missed_at_ms = 0

    @property
    def wait(self) -> timedelta:
        """Throttle time for the response, less the time that the commit took."""
        since_ms = monotonic_ms(self._clock) - self._missed_at_ms
        return timedelta(milliseconds=max(self._missing_ms - since_ms, 0))

    def charge(self, partitions: int) -> None:
        """Take tokens for partitions that are created or deleted. Raises ItemRefused if the quota is exceeded."""
        bucket, now_ms = self._bucket, monotonic_ms(self._clock)
        if bucket is None:
            return
        missing_ms = bucket.missing_ms(now_ms)
        if self._strict and missing_ms:
            self._misses(missing_ms, now_ms)
            raise ItemRefused(
                ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded."
            )
        bucket.take(partitions, now_ms)
        if not self._strict:
            self._misses(bucket.missing_ms(now_ms), now_ms)

    def _misses(self, missing_ms: int, now_ms: int) -> None:
        self._missing_ms, self._missed_at_ms = missing_ms, now_ms


def mutations_of(ctx: RequestContext, *, is_free: bool = False) -> RequestMutations:
    """Controller mutation quota of a request. `is_free` is for topics that brokers create for all clients."""
    quotas, clock = ctx.services.client_quotas, ctx.services.seams.clock
    bucket = None
    if quotas is not None and not is_free:
        user = ctx.principal.partition(":")[2]
        bucket = quotas.mutations(user, ctx.client_id or "", monotonic_ms(clock))
    return RequestMutations(bucket, clock, strict=ctx.api_version >= STRICT_SINCE[ctx.api])
