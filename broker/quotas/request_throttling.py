"""Handles requests of clients with quotas: records their usage and throttles them (KIP-219).

As in Kafka, a response is sent at once with its throttle time, and the connection is muted for that time.
Recorded are the bytes of Produce requests and Fetch responses, and the time in which a request occupies the
event loop, as a percentage of time. Requests of brokers are exempt. The active controller enforces the
controller mutation quota (`partition_mutation_quota.py`); its throttle time is applied here.

A Produce request to a diskless topic is recorded when its batches are buffered. If it is not throttled, its
response waits for the commit while the connection handles the next requests.

A fetch that exceeds its quota returns its records and then mutes the connection; Kafka returns no records and
lets the client retry. The average rate is the same.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from functools import cache
from struct import Struct
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import trio

from odradek.broker.quotas.client_quotas import ClientQuotas
from odradek.broker.quotas.partition_mutation_quota import STRICT_SINCE
from odradek.broker.requests.steps import write_in_steps
from odradek.broker.timers import monotonic_ms
from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from odradek.protocol.framing import parts_bytes
from odradek.replication.controller.client_quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from odradek.seams.clock import Clock
from odradek.seams.files import Buffer, FileSlice

if TYPE_CHECKING:
    from odradek.broker.requests.context import DeferredResponse, RequestContext
    from odradek.broker.requests.route import Route

T = TypeVar("T")

FREE: Final = frozenset({apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE, apis.WRITE_TXN_MARKERS})
_THROTTLE: Final = Struct(">i")


async def respond_within(
    quotas: ClientQuotas, route: Route, request: Any, request_bytes: int, ctx: RequestContext
) -> tuple[Any, int]:
    """Handle a request; returns the encoded body (None without a response) and the throttle time in ms."""
    clock = ctx.services.seams.clock
    connection, ctx.connection = ctx.connection, None  # it is recorded before it is sent
    deferral: _Deferral | None = None
    if ctx.api is apis.PRODUCE and ctx.services.diskless is not None and connection is not None:
        ctx.connection = deferral = _Deferral()
    user, client_id = ctx.principal.partition(":")[2], ctx.client_id or ""
    meter = _Meter(clock)
    handled = cast("Coroutine[Any, Any, Any]", route.handler(request, ctx))
    values = await meter.run(handled)
    response = None if deferral is None else deferral.response
    if ctx.api in FREE or _is_follower(ctx.api, request):
        return None if values is None else await write_in_steps(route, values, ctx), 0
    now_ms, wait_ms = monotonic_ms(clock), wait_by_controller(ctx.api, values)
    if ctx.api is apis.PRODUCE:
        wait_ms = quotas.record(PRODUCER_BYTE_RATE, user, client_id, request_bytes, now_ms)
    if response is not None and connection is not None:
        if quotas.limits(REQUEST_PERCENTAGE):
            percent = meter.busy_seconds * 100
            waits = quotas.record(REQUEST_PERCENTAGE, user, client_id, percent, now_ms)
            wait_ms = max(wait_ms, waits)
        if wait_ms:
            return await _respond_throttled(response, route, wait_ms, ctx)
        await connection.respond_when_done(ctx, response)
        return None, 0
    # acks=0 has no response with a throttle time, and Kafka records no request time
    if values is None:
        return None, wait_ms
    if quotas.limits(REQUEST_PERCENTAGE):
        percent = meter.busy_seconds * 100
        waits = quotas.record(REQUEST_PERCENTAGE, user, client_id, percent, now_ms)
        wait_ms = max(wait_ms, waits)
    if ctx.api is not apis.FETCH:
        response = _with_throttle_time(ctx.api, values, wait_ms) if wait_ms else values
        return await write_in_steps(route, response, ctx), wait_ms
    parts = cast("Sequence[Buffer | FileSlice]", route.write(ctx.api.key, ctx.api_version, values))
    waits = quotas.record(CONSUMER_BYTE_RATE, user, client_id, parts_bytes(parts), now_ms)
    wait_ms = max(wait_ms, waits)
    head = bytearray(cast(Buffer, parts[0]))
    # throttle_time_ms is the first field in every supported version
    _THROTTLE.pack_into(head, 0, wait_ms)
    return [head, *parts[1:]], wait_ms


class _Deferral:
    """Takes the response that a handler defers, in place of the connection."""

    def __init__(self) -> None:
        self.response: DeferredResponse | None = None

    async def respond_when_done(self, ctx: RequestContext, response: DeferredResponse) -> None:
        self.response = response

    def respond_nowait(self, ctx: RequestContext, values: Any) -> None:
        raise AssertionError("only fetches respond in another task")

    async def wait_for_next_request(self) -> None:
        return

    def wake(self) -> None:
        return


async def _respond_throttled(
    response: DeferredResponse, route: Route, wait_ms: int, ctx: RequestContext
) -> tuple[Any, int]:
    """Wait until a deferred response is done; the connection reads no further request meanwhile. Returns the body and the
    rest of the throttle time."""
    began_ms = monotonic_ms(ctx.services.seams.clock)
    await ctx.flush()
    done = trio.Event()
    response.on_done(done.set)
    if not response.is_done:
        with trio.move_on_at(response.deadline):
            await done.wait()
    values = response.values()
    left_ms = max(0, wait_ms - (monotonic_ms(ctx.services.seams.clock) - began_ms))
    if values is None:
        return None, left_ms
    throttled = _with_throttle_time(ctx.api, values, wait_ms)
    return await write_in_steps(route, throttled, ctx), left_ms


def fetch_bytes_max(ctx: RequestContext) -> float:
    """Maximum bytes of a fetch: more than the quota of all windows would mute the client for longer than its
    request timeout."""
    quotas = ctx.services.client_quotas
    if quotas is None:
        return float("inf")
    user = ctx.principal.partition(":")[2]
    burst = quotas.burst(CONSUMER_BYTE_RATE, user, ctx.client_id or "")
    return float("inf") if burst is None else burst


def _is_follower(api: Api, request: Any) -> bool:
    return api is apis.FETCH and request.replica_id >= 0


def wait_by_controller(api: Api, values: Any) -> int:
    """Throttle time in ms in a response of the active controller, local or forwarded."""
    if api not in STRICT_SINCE or values is None:
        return 0
    if isinstance(values, Mapping):
        wait: timedelta = values.get("throttle_time", timedelta())
        return wait // timedelta(milliseconds=1)
    # throttle_time_ms is the first field, as in Fetch
    throttle_ms: int = _THROTTLE.unpack_from(values.body)[0]
    return throttle_ms


def _with_throttle_time(api: Api, values: Any, wait_ms: int) -> Any:
    """Response with the throttle time, if it has the field; a forwarded response is not changed."""
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
    """Measures the time in which a coroutine occupies the event loop, without its waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.busy_seconds = 0.0

    @coroutine
    def run(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await `work` and measure each of its steps."""
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
            except BaseException as error:  # thrown into the coroutine, for example a cancellation
                value, send = error, work.throw
