"""Requests of clients that have quotas: what they use is counted, and who used too much is left alone.

As Kafka does since KIP-219: an answer is sent at once and says for how long its client is throttled, and
so long nothing more is read from that connection. Counted are the bytes of produce requests and of
fetches' answers, and the time that the loop is busy with a request, as a share of all of its time. What
brokers ask each other is free. Topics and partitions that are made or deleted the active controller counts
(`mutations.py`); what it says is waited for here.

A fetch that takes its client over its quota brings its records, and the client waits for it after that;
Kafka's broker has it come again for them. What it may have over time is the same.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from functools import cache
from struct import Struct
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from odradek.broker.quotas.client_quotas import ClientQuotas
from odradek.broker.quotas.partition_mutation_quota import STRICT_SINCE
from odradek.broker.timers import monotonic_ms
from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from odradek.protocol.framing import parts_bytes
from odradek.replication.controller.quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from odradek.seams.clock import Clock
from odradek.seams.files import Buffer, FileSlice

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext
    from odradek.broker.requests.route import Route

T = TypeVar("T")

FREE: Final = frozenset({apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE, apis.WRITE_TXN_MARKERS})
_THROTTLE: Final = Struct(">i")


async def respond_within(
    quotas: ClientQuotas, route: Route, request: Any, request_bytes: int, ctx: RequestContext
) -> tuple[Any, int]:
    """The body of the answer (None if there is none), and for how many ms its client is throttled."""
    clock = ctx.services.seams.clock
    ctx.connection = None  # what is sent is to be counted
    user, client_id = ctx.principal.partition(":")[2], ctx.client_id or ""
    meter = _Meter(clock)
    handled = cast("Coroutine[Any, Any, Any]", route.handler(request, ctx))
    values = await meter.run(handled)
    if ctx.api in FREE or _is_follower(ctx.api, request):
        body = None if values is None else route.write(ctx.api.key, ctx.api_version, values)
        return body, 0
    now_ms, wait_ms = monotonic_ms(clock), wait_by_controller(ctx.api, values)
    if ctx.api is apis.PRODUCE:
        wait_ms = quotas.record(PRODUCER_BYTE_RATE, user, client_id, request_bytes, now_ms)
    if values is None:  # acks=0: an answer that is not sent tells of no time, and Kafka counts none
        return None, wait_ms
    if quotas.limits(REQUEST_PERCENTAGE):
        percent = meter.busy_seconds * 100
        waits = quotas.record(REQUEST_PERCENTAGE, user, client_id, percent, now_ms)
        wait_ms = max(wait_ms, waits)
    if ctx.api is not apis.FETCH:
        told = _told(ctx.api, values, wait_ms) if wait_ms else values
        return route.write(ctx.api.key, ctx.api_version, told), wait_ms
    parts = cast("Sequence[Buffer | FileSlice]", route.write(ctx.api.key, ctx.api_version, values))
    waits = quotas.record(CONSUMER_BYTE_RATE, user, client_id, parts_bytes(parts), now_ms)
    wait_ms = max(wait_ms, waits)
    head = bytearray(cast(Buffer, parts[0]))
    _THROTTLE.pack_into(head, 0, wait_ms)  # the first field, in every version that is served
    return [head, *parts[1:]], wait_ms


def fetch_bytes_max(ctx: RequestContext) -> float:
    """The most that a fetch brings: more than a client may have in all the windows of its quota would
    silence it for longer than it can wait."""
    quotas = ctx.services.client_quotas
    if quotas is None:
        return float("inf")
    user = ctx.principal.partition(":")[2]
    burst = quotas.burst(CONSUMER_BYTE_RATE, user, ctx.client_id or "")
    return float("inf") if burst is None else burst


def _is_follower(api: Api, request: Any) -> bool:
    return api is apis.FETCH and request.replica_id >= 0


def wait_by_controller(api: Api, values: Any) -> int:
    """What the active controller has said of mutations, here or elsewhere."""
    if api not in STRICT_SINCE or values is None:
        return 0
    if isinstance(values, Mapping):
        wait: timedelta = values.get("throttle_time", timedelta())
        return wait // timedelta(milliseconds=1)
    told: int = _THROTTLE.unpack_from(values.body)[0]  # the first field, as of a fetch
    return told


def _told(api: Api, values: Any, wait_ms: int) -> Any:
    """The answer, with the time in it where it has a place for it: one that a controller has written
    stays as it is."""
    if api is apis.PRODUCE:
        return replace(values, throttle_time_ms=wait_ms)
    if not isinstance(values, Mapping) or not _has_throttle_time(api):
        return values
    return {**values, "throttle_time": timedelta(milliseconds=wait_ms)}


@cache
def _has_throttle_time(api: Api) -> bool:
    newest = messages.load(api.key, api.max_version, "response")
    return any(field.name == "throttle_time" for field in fields(newest))


class _Meter:
    """For how long a coroutine keeps the loop busy, its waits left out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.busy_seconds = 0.0

    @coroutine
    def run(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await `work`, and take the time of each of its steps."""
        send, value = work.send, None
        while True:
            begun = self._clock.monotonic()
            try:
                wanted = send(value)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self.busy_seconds += self._clock.monotonic() - begun
            try:
                value, send = (yield wanted), work.send
            except BaseException as error:  # into the work with it: a cancellation, mostly
                value, send = error, work.throw
