"""One connection to one broker: frames, correlation, versions, time-outs.

Requests are pipelined: any number of tasks may wait for answers at once. One task, `run`, reads; the
broker answers in order, but answers are matched by correlation id, so an answer that nobody waits for
any more (a time-out, a cancellation) is read and dropped. What breaks the connection fails everybody
who waits on it with Unreachable; a broken connection is never mended, its owner opens a new one.

Which versions the broker serves is asked once, right after connecting (KIP-511: with the newest
version of ApiVersions, then with version 0 if the broker is older than that).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

import trio

from odradek.client.errors import ClientError, Refused, TimedOut, Unreachable, Unsupported
from odradek.client.incoming import IncomingResponses
from odradek.protocol import messages
from odradek.protocol.apis import API_VERSIONS, Api
from odradek.protocol.errors import ErrorCode, InvalidFrame, error_code
from odradek.protocol.framing import frame_head, read_response_header, request_header
from odradek.seams.files import Buffer
from odradek.seams.locks import PromptLock
from odradek.seams.network import Address, Connection, ConnectionLost, ConnectionRefused, Network

CLIENT_ID = "odradek"

SILENT_S = 1.0
"""For longer than this no answer is waited for on most connections, but to a broker that hangs."""
_CORRELATION = struct.Struct(">i")


class _Waiter:
    """Somebody who waits for an answer."""

    __slots__ = ("api", "arrived", "asked_at", "body", "due_at", "failure", "timeout_s", "version")

    def __init__(self, api: Api, version: int, timeout_s: float) -> None:
        self.api = api
        self.version = version
        self.timeout_s = timeout_s
        self.asked_at = trio.current_time()
        self.due_at = self.asked_at + timeout_s
        self.arrived = trio.Event()
        self.body: memoryview | None = None
        self.failure: ClientError | None = None


class BrokerConnection:
    """A connection on which requests can be made while `run` is running: no answer comes without it, and no
    time-out.

    `address` is where the broker is, for texts; `client_id` is what it hears from us.
    """

    def __init__(
        self, stream: Connection, address: Address, *, client_id: str | None = CLIENT_ID
    ) -> None:
        self.address = address
        self.client_id = client_id
        self._stream = stream
        self._sending = PromptLock()
        self._waiters: dict[int, _Waiter] = {}
        self._next_correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._broken: ClientError | None = None
        self._patience = trio.CancelScope()
        """Of who reads: until the first of those who wait may be overdue."""

    @property
    def ready(self) -> bool:
        """Whether the broker's versions are known."""
        return bool(self._versions)

    @property
    def broken(self) -> bool:
        return self._broken is not None

    @property
    def is_silent(self) -> bool:
        """Somebody has waited for so long that another broker had better be asked, if there is one: answers
        come in order."""
        limit = trio.current_time() - SILENT_S
        return any(each.asked_at < limit for each in self._waiters.values())

    def version_of(self, api: Api, at_most: int | None = None) -> int:
        """The newest version that both sides have, not above `at_most`; Unsupported if none."""
        low, high = self._versions.get(api.key, (0, -1))
        ours = api.max_version if at_most is None else min(api.max_version, at_most)
        version = min(high, ours)
        if version < max(low, api.min_version):
            there = f"versions {low} to {high}" if high >= 0 else "no such request"
            raise Unsupported(
                f"the broker at {self.address} has {there} for {api.title}; "
                f"{api.min_version} to {ours} are spoken here"
            )
        return version

    def serves(self, api: Api, version: int | None = None) -> bool:
        """Whether the broker has this API (at this version)."""
        low, high = self._versions.get(api.key, (0, -1))
        return high >= 0 if version is None else low <= version <= high

    async def run(self) -> None:
        """Read answers until the connection is closed or breaks; somebody's nursery owns this."""
        try:
            await self._read_responses()
        except (ConnectionLost, InvalidFrame) as lost:
            self.abort(Unreachable(f"lost the connection to {self.address}: {lost}"))
        finally:
            self.abort()

    async def negotiate(self) -> None:
        """Learn which versions the broker serves; the first request on every connection."""
        values = {"client_software_name": "odradek", "client_software_version": "1"}
        for version in (API_VERSIONS.max_version, 0):
            body = messages.write_request(API_VERSIONS.key, version, values)
            waiter = await self._ask(API_VERSIONS, version, body, timeout_s=30.0)
            assert waiter.body is not None
            try:
                code, ranges = _ranges(version, bytes(waiter.body))
            except InvalidFrame as garbage:
                raise self.garbled(API_VERSIONS, garbage) from garbage
            if code != ErrorCode.unsupported_version:
                break
        if code != ErrorCode.none:
            raise Unreachable(f"{self.address} refuses ApiVersions: {error_code(code).name}")
        self._versions = ranges

    async def request(
        self,
        api: Api,
        values: Mapping[str, Any],
        *,
        timeout_s: float = 30.0,
        at_most: int | None = None,
    ) -> Any:
        """Send one request and wait for its answer, a kio entity of the version spoken.

        `at_most` caps the version. Raises Unsupported, Unreachable or, while `run` is running,
        TimedOut after `timeout_s`; the error codes inside an answer are the caller's to read.
        """
        version = self.version_of(api, at_most)
        return await self._exchange(api, version, values, timeout_s)

    async def exchange(
        self, api: Api, version: int, body: bytes, *, timeout_s: float = 30.0
    ) -> memoryview:
        """Send a request that was written for this version, and wait for its answer, as it came.

        Raises Unreachable or TimedOut, as `request` does.
        """
        waiter = await self._ask(api, version, body, timeout_s)
        assert waiter.body is not None
        try:
            _, start = read_response_header(api, version, waiter.body)
        except InvalidFrame as garbage:
            raise self.garbled(api, garbage) from garbage
        return waiter.body[start:]

    def garbled(self, api: Api, why: Exception) -> Unreachable:
        """The answer makes no sense: the connection is given up; what to raise."""
        failure = Unreachable(f"{self.address} answers {api.title} with garbage: {why}")
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
        """Send a request that has no answer: Produce with acks=0.

        Raises Unsupported, Unreachable or, where the broker does not read it in `timeout_s`, TimedOut.
        """
        version = self.version_of(api, at_most)
        body = messages.write_request(api.key, version, values)
        with trio.move_on_after(timeout_s) as patience:
            await self._send(api, version, self._correlation_id(), [body])
        if patience.cancelled_caught:
            unread = f"{api.title} in {timeout_s:g} s"
            late = TimedOut(f"the broker at {self.address} did not read {unread}")
            self.abort(late)
            raise late

    async def aclose(self) -> None:
        """Close; what was sent still arrives, which matters where no answer was waited for."""
        self._fail(Unreachable(f"the connection to {self.address} was closed"))
        await self._stream.aclose()

    def abort(self, why: ClientError | None = None) -> None:
        """Close at once, whatever is still on its way; whoever waits gets `why`."""
        self._fail(why or Unreachable(f"the connection to {self.address} was closed"))
        self._stream.abort()

    def _fail(self, why: ClientError) -> None:
        if self._broken is None:
            self._broken = why
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.failure = self._broken
            waiter.arrived.set()

    async def _exchange(
        self, api: Api, version: int, values: Mapping[str, Any], timeout_s: float
    ) -> Any:
        body = messages.write_request(api.key, version, values)
        return self._decode(await self._ask(api, version, body, timeout_s))

    async def _ask(self, api: Api, version: int, body: bytes, timeout_s: float) -> _Waiter:
        """With the answer in it."""
        correlation_id = self._correlation_id()
        waiter = self._waiters[correlation_id] = _Waiter(api, version, timeout_s)
        if waiter.due_at < self._patience.deadline:
            self._patience.deadline = waiter.due_at
        try:
            await self._send(api, version, correlation_id, [body])
            await waiter.arrived.wait()
        finally:
            self._waiters.pop(correlation_id, None)  # a late answer is for nobody
        if waiter.failure is not None:
            raise waiter.failure
        return waiter

    def _decode(self, waiter: _Waiter) -> Any:
        assert waiter.body is not None
        api, version, body = waiter.api, waiter.version, waiter.body
        try:
            _, start = read_response_header(api, version, body)
            return messages.read_response(api.key, version, body, start)
        except InvalidFrame as garbage:
            raise self.garbled(api, garbage) from garbage

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
                # The seam aborts a connection on which half a frame was sent; this one is spent.
                self.abort()
                raise

    async def _read_responses(self) -> None:
        incoming = IncomingResponses()
        while (late := self._overdue()) is None:
            due_at = min((each.due_at for each in self._waiters.values()), default=inf)
            with trio.CancelScope(deadline=due_at) as self._patience:
                while True:
                    count = await self._stream.receive_into(incoming.room())
                    if count == 0:
                        raise ConnectionLost("closed by the broker")
                    incoming.received(count)
                    while (body := incoming.next_response()) is not None:
                        self._deliver(body)
        # Nobody waits any more: answers come in order, and nothing behind that one would come sooner.
        asked = f"{late.api.title} in {late.timeout_s:g} s"
        self.abort(TimedOut(f"the broker at {self.address} did not answer {asked}"))

    def _overdue(self) -> _Waiter | None:
        """One that has waited too long."""
        now = trio.current_time()
        return next((each for each in self._waiters.values() if each.due_at <= now), None)

    def _deliver(self, body: memoryview) -> None:
        waiter = self._waiters.pop(_CORRELATION.unpack_from(body)[0], None)
        if waiter is not None:
            waiter.body = body
            waiter.arrived.set()


_Ranges = dict[int, tuple[int, int]]


def _ranges(version: int, frame: bytes) -> tuple[int, _Ranges]:
    """An answer to ApiVersions: its error, and the versions of each API. Raises InvalidFrame.

    UNSUPPORTED_VERSION is said in version 0 (KIP-511).
    """
    _, start = read_response_header(API_VERSIONS, version, memoryview(frame))
    return _read_ranges(version, frame[start:])


@lru_cache(maxsize=256)
def _read_ranges(version: int, body: bytes) -> tuple[int, _Ranges]:
    """Read once of those that answer alike: there are some sixty rows."""
    if int.from_bytes(body[:2], "big", signed=True) == ErrorCode.unsupported_version:
        version = 0
    respond = messages.read_response(API_VERSIONS.key, version, memoryview(body))
    ranges = {row.api_key: (row.min_version, row.max_version) for row in respond.api_keys}
    return int(respond.error_code), ranges


async def open_connection(
    network: Network,
    address: Address,
    nursery: trio.Nursery,
    *,
    client_id: str | None = CLIENT_ID,
    timeout_s: float = 10.0,
) -> BrokerConnection:
    """Connect, learn the broker's versions, and read answers in `nursery` from then on.

    Raises Unreachable (Refused where nobody listens) or TimedOut.
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
        raise kind(f"nobody answers at {address}: {why}") from lost
    except trio.TooSlowError:
        raise TimedOut(f"no connection to {address} in {round(timeout_s, 2):g} s") from None
    finally:
        if connection is not None and not connection.ready:
            connection.abort()
    return connection
