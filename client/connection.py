"""Connection to one broker: framing, correlation ids, API versions and timeouts.

Requests are pipelined: several tasks can wait for responses at the same time. The task `run` receives responses and
matches them to requests by correlation id. A response whose request was cancelled is dropped. If the connection
is lost, all pending requests fail with Unreachable; the owner opens a new connection.

ApiVersions is the first request on a connection (KIP-511): first in its newest version, then in version 0 if the
broker does not support that version.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

import trio

from odradek.client.errors import ClientError, Refused, TimedOut, Unreachable, Unsupported
from odradek.protocol import messages
from odradek.protocol.apis import API_VERSIONS, PRIVATE_APIS, Api
from odradek.protocol.errors import ErrorCode, InvalidFrame, error_code
from odradek.protocol.framing import frame_head, read_response_header, request_header
from odradek.seams.files import Buffer
from odradek.seams.locks import PromptLock
from odradek.seams.network import Address, Connection, ConnectionLost, ConnectionRefused, Network

CLIENT_ID = "odradek"

UNRESPONSIVE_S = 1.0
"""Age of a pending request after which another connection is preferred."""
MAX_RESPONSE_BYTES = 256 << 20
"""Maximum size of a response in bytes; a larger size is invalid."""
RECEIVE_BYTES = 64 << 10
_INT32 = struct.Struct(">i")


class ResponseBuffer:
    """Received bytes of responses. A cancelled receive loses no bytes, so that receiving can continue."""

    def __init__(self) -> None:
        self._chunk = memoryview(bytearray(RECEIVE_BYTES))
        self._start = self._end = 0
        self._body: memoryview | None = None
        """Memory of an incomplete response, which contains all bytes of the chunk."""
        self._have = 0

    def receive_space(self) -> memoryview:
        """Memory for the next receive; never empty. Call it only after `next_response` returned None."""
        if self._body is not None:
            return self._body[self._have :]
        left = bytes(self._chunk[self._start : self._end])
        self._start, self._end = 0, len(left)
        self._chunk[: self._end] = left
        return self._chunk[self._end :]

    def received(self, count: int) -> None:
        """Record that `count` bytes were received into the last `receive_space()`."""
        if self._body is None:
            self._end += count
        else:
            self._have += count

    def next_response(self) -> memoryview | None:
        """Return the next complete response without its size prefix, or None if it is incomplete.

        Raises InvalidFrame for an invalid size.
        """
        if self._body is None:
            start = self._start + _INT32.size
            if start > self._end:
                return None
            (size,) = _INT32.unpack_from(self._chunk, self._start)
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                raise InvalidFrame(f"invalid response size {size} (is this a Kafka listener?)")
            self._body = memoryview(bytearray(size))
            self._have = min(size, self._end - start)
            self._start = start + self._have
            self._body[: self._have] = self._chunk[start : self._start]
        if self._have < len(self._body):
            return None
        body, self._body = self._body, None
        return body


class _PendingRequest:
    """Request that waits for its response."""

    __slots__ = ("api", "arrived", "body", "due_at", "failure", "sent_at", "timeout_s", "version")

    def __init__(self, api: Api, version: int, timeout_s: float) -> None:
        self.api = api
        self.version = version
        self.timeout_s = timeout_s
        self.sent_at = trio.current_time()
        self.due_at = self.sent_at + timeout_s
        self.arrived = trio.Event()
        self.body: memoryview | None = None
        self.failure: ClientError | None = None


class BrokerConnection:
    """Connection to a broker. Responses and timeouts need the task `run`.

    `address` is used in messages; `client_id` is sent in request headers.
    """

    def __init__(
        self, stream: Connection, address: Address, *, client_id: str | None = CLIENT_ID
    ) -> None:
        self.address = address
        self.client_id = client_id
        self._stream = stream
        self._sending = PromptLock()
        self._pending: dict[int, _PendingRequest] = {}
        self._next_correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._broken: ClientError | None = None
        self._receive_scope = trio.CancelScope()
        """Scope of the receive; its deadline is the earliest timeout of the pending requests."""

    @property
    def ready(self) -> bool:
        """Whether the broker's API versions are known."""
        return bool(self._versions)

    @property
    def broken(self) -> bool:
        return self._broken is not None

    @property
    def is_unresponsive(self) -> bool:
        """Whether a request is pending for more than `UNRESPONSIVE_S`; later responses wait for it."""
        limit = trio.current_time() - UNRESPONSIVE_S
        return any(each.sent_at < limit for each in self._pending.values())

    def version_of(self, api: Api, at_most: int | None = None) -> int:
        """Newest version that both sides support, up to `at_most`. Raises Unsupported if there is none."""
        low, high = self._versions.get(api.key, (0, -1))
        client_max = api.max_version if at_most is None else min(api.max_version, at_most)
        version = min(high, client_max)
        if version < max(low, api.min_version):
            if api.key in PRIVATE_APIS:
                return api.max_version
            supported = f"supports versions {low} to {high} of" if high >= 0 else "does not support"
            raise Unsupported(
                f"the broker at {self.address} {supported} {api.title}; "
                f"the client needs {api.min_version} to {client_max}"
            )
        return version

    def serves(self, api: Api, version: int | None = None) -> bool:
        """Whether the broker supports this API, in this version if one is given."""
        low, high = self._versions.get(api.key, (0, -1))
        return high >= 0 if version is None else low <= version <= high

    async def run(self) -> None:
        """Receive responses until the connection is closed or lost."""
        try:
            await self._receive_responses()
        except (ConnectionLost, InvalidFrame) as lost:
            self.abort(Unreachable(f"lost the connection to {self.address}: {lost}"))
        finally:
            self.abort()

    async def negotiate(self) -> None:
        """Request the API versions of the broker, as the first request of a connection."""
        values = {"client_software_name": "odradek", "client_software_version": "1"}
        for version in (API_VERSIONS.max_version, 0):
            body = messages.write_request(API_VERSIONS.key, version, values)
            pending = await self._send_and_wait(API_VERSIONS, version, body, timeout_s=30.0)
            assert pending.body is not None
            try:
                code, ranges = _ranges(version, bytes(pending.body))
            except InvalidFrame as error:
                raise self.invalid_response(API_VERSIONS, error) from error
            if code != ErrorCode.unsupported_version:
                break
        if code != ErrorCode.none:
            raise Unreachable(f"ApiVersions of {self.address} failed: {error_code(code).name}")
        self._versions = ranges

    async def request(
        self,
        api: Api,
        values: Mapping[str, Any],
        *,
        timeout_s: float = 30.0,
        at_most: int | None = None,
    ) -> Any:
        """Send a request and wait for its response, a kio entity of the request's version.

        `at_most` limits the version. Raises Unsupported, Unreachable, or TimedOut after `timeout_s`
        seconds. The caller checks the error codes in the response.
        """
        version = self.version_of(api, at_most)
        return await self._exchange(api, version, values, timeout_s)

    async def exchange(
        self, api: Api, version: int, body: bytes, *, timeout_s: float = 30.0
    ) -> memoryview:
        """Send an encoded request of this version, and return the encoded response.

        Raises Unreachable or TimedOut, as `request` does.
        """
        pending = await self._send_and_wait(api, version, body, timeout_s)
        assert pending.body is not None
        try:
            _, start = read_response_header(api, version, pending.body)
        except InvalidFrame as error:
            raise self.invalid_response(api, error) from error
        return pending.body[start:]

    def invalid_response(self, api: Api, why: Exception) -> Unreachable:
        """Abort the connection after an invalid response, and return the error to raise."""
        failure = Unreachable(f"invalid {api.title} response from {self.address}: {why}")
        self.abort(failure)
        return failure

    async def send_only(
        self,
        api: Api,
        values: Mapping[str, Any],
        *,
        timeout_s: float = 30.0,
        at_most: int | None = None,
    ) -> None:
        """Send a request without a response: Produce with acks=0.

        Raises Unsupported, Unreachable, or TimedOut if the broker does not receive it in `timeout_s`.
        """
        version = self.version_of(api, at_most)
        body = messages.write_request(api.key, version, values)
        with trio.move_on_after(timeout_s) as send_scope:
            await self._send(api, version, self._correlation_id(), [body])
        if send_scope.cancelled_caught:
            unread = f"{api.title} in {timeout_s:g} s"
            late = TimedOut(f"the broker at {self.address} did not receive {unread}")
            self.abort(late)
            raise late

    async def aclose(self) -> None:
        """Close the connection; sent requests, such as Produce with acks=0, still reach the broker."""
        self._fail(Unreachable(f"the connection to {self.address} was closed"))
        await self._stream.aclose()

    def abort(self, why: ClientError | None = None) -> None:
        """Close the connection at once; pending requests fail with `why`."""
        self._fail(why or Unreachable(f"the connection to {self.address} was closed"))
        self._stream.abort()

    def _fail(self, why: ClientError) -> None:
        if self._broken is None:
            self._broken = why
        all_pending, self._pending = self._pending, {}
        for pending in all_pending.values():
            pending.failure = self._broken
            pending.arrived.set()

    async def _exchange(
        self, api: Api, version: int, values: Mapping[str, Any], timeout_s: float
    ) -> Any:
        body = messages.write_request(api.key, version, values)
        return self._decode(await self._send_and_wait(api, version, body, timeout_s))

    async def _send_and_wait(
        self, api: Api, version: int, body: bytes, timeout_s: float
    ) -> _PendingRequest:
        """Send a request, and return it after its response was received."""
        correlation_id = self._correlation_id()
        pending = self._pending[correlation_id] = _PendingRequest(api, version, timeout_s)
        if pending.due_at < self._receive_scope.deadline:
            self._receive_scope.deadline = pending.due_at
        try:
            await self._send(api, version, correlation_id, [body])
            await pending.arrived.wait()
        finally:
            self._pending.pop(correlation_id, None)  # drop a late response
        if pending.failure is not None:
            raise pending.failure
        return pending

    def _decode(self, pending: _PendingRequest) -> Any:
        assert pending.body is not None
        api, version, body = pending.api, pending.version, pending.body
        try:
            _, start = read_response_header(api, version, body)
            return messages.read_response(api.key, version, body, start)
        except InvalidFrame as error:
            raise self.invalid_response(api, error) from error

    def _correlation_id(self) -> int:
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
        return self._next_correlation_id

    async def _send(
        self, api: Api, version: int, correlation_id: int, body: Sequence[Buffer]
    ) -> None:
        header = request_header(api, version, correlation_id, self.client_id)
        async with self._sending:
            if self._broken is not None:
                raise self._broken
            try:
                head, _ = frame_head(header, body)
                await self._stream.send([head, *body])
            except ConnectionLost as lost:
                self.abort(Unreachable(f"lost the connection to {self.address}: {lost}"))
                assert self._broken is not None
                raise self._broken from lost
            except trio.Cancelled:
                # The seam aborts a connection after a partly sent frame.
                self.abort()
                raise

    async def _receive_responses(self) -> None:
        incoming = ResponseBuffer()
        while (late := self._overdue()) is None:
            due_at = min((each.due_at for each in self._pending.values()), default=inf)
            with trio.CancelScope(deadline=due_at) as self._receive_scope:
                while True:
                    count = await self._stream.receive_into(incoming.receive_space())
                    if count == 0:
                        raise ConnectionLost("closed by the broker")
                    incoming.received(count)
                    while (body := incoming.next_response()) is not None:
                        self._deliver(body)
        # Responses are in order: all other pending requests would wait for this one.
        request = f"{late.api.title} in {late.timeout_s:g} s"
        self.abort(TimedOut(f"the broker at {self.address} did not respond to {request}"))

    def _overdue(self) -> _PendingRequest | None:
        """Return a pending request whose timeout has expired."""
        now = trio.current_time()
        return next((each for each in self._pending.values() if each.due_at <= now), None)

    def _deliver(self, body: memoryview) -> None:
        pending = self._pending.pop(_INT32.unpack_from(body)[0], None)
        if pending is not None:
            pending.body = body
            pending.arrived.set()


_Ranges = dict[int, tuple[int, int]]


def _ranges(version: int, frame: bytes) -> tuple[int, _Ranges]:
    """Decode an ApiVersions response to its error code and the versions of each API. Raises InvalidFrame.

    A response with UNSUPPORTED_VERSION has version 0 (KIP-511).
    """
    _, start = read_response_header(API_VERSIONS, version, memoryview(frame))
    return _read_ranges(version, frame[start:])


@lru_cache(maxsize=256)
def _read_ranges(version: int, body: bytes) -> tuple[int, _Ranges]:
    """Decode a response body; equal responses are cached, because each has about sixty rows."""
    if int.from_bytes(body[:2], "big", signed=True) == ErrorCode.unsupported_version:
        version = 0
    response = messages.read_response(API_VERSIONS.key, version, memoryview(body))
    ranges = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
    return int(response.error_code), ranges


async def open_connection(
    network: Network,
    address: Address,
    nursery: trio.Nursery,
    *,
    client_id: str | None = CLIENT_ID,
    timeout_s: float = 10.0,
) -> BrokerConnection:
    """Connect, request the broker's API versions, and receive responses in `nursery`.

    Raises Unreachable (Refused if no process listens) or TimedOut.
    """
    connection: BrokerConnection | None = None
    try:
        with trio.fail_after(timeout_s):
            stream = await network.connect(address.host, address.port)
            connection = BrokerConnection(stream, address, client_id=client_id)
            nursery.start_soon(connection.run)
            await connection.negotiate()
    except ConnectionLost as lost:
        why = str(lost).removeprefix(f"{address}: ")
        kind = Refused if isinstance(lost, ConnectionRefused) else Unreachable
        raise kind(f"cannot connect to {address}: {why}") from lost
    except trio.TooSlowError:
        raise TimedOut(
            f"timed out connecting to {address} after {round(timeout_s, 2):g} s"
        ) from None
    finally:
        if connection is not None and not connection.ready:
            connection.abort()
    return connection
